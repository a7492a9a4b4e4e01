"""What certificates say about the model vLLM serves, and where its sentences end."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from semblend.core.outcomes import DeclineReason
from semblend.core.settings import Settings
from semblend.planning.boundaries import Boundaries
from semblend.planning.certificates import Standing, certificate_folders, look_up

logger = logging.getLogger("vllm.semblend")


def standing_of(model_config: Any, settings: Settings) -> Standing:
    """The certificate of these weights that holds, or why none does. Never raises."""
    try:
        fingerprint = model_fingerprint(model_config)
    except (OSError, ValueError) as error:
        return Standing(reason=DeclineReason.NO_CERTIFICATE, detail=f"weights unread: {error}")
    if fingerprint is None:
        return Standing(
            reason=DeclineReason.NO_CERTIFICATE,
            detail=f"no safetensors files of {model_config.model} were found to look up",
        )
    dtype = str(model_config.dtype).removeprefix("torch.")
    return look_up(fingerprint, dtype=dtype, folders=certificate_folders(settings.certificate_dir))


def model_fingerprint(model_config: Any) -> str | None:
    """The content hash certificates are named by, or None where there are no files to hash."""
    from semblend.kv.fingerprint import weights_fingerprint

    folder = _folder_of(model_config)
    if folder is None or not any(folder.glob("*.safetensors")):
        return None
    return weights_fingerprint(None, model_config.hf_config, folder)  # type: ignore[arg-type]


def boundaries_of(model_config: Any) -> Boundaries | None:
    """Sentence boundaries of the model's vocabulary; None where its tokenizer cannot say."""
    if model_config.skip_tokenizer_init:
        return None
    from vllm.tokenizers import get_tokenizer

    try:
        tokenizer: Any = get_tokenizer(
            model_config.tokenizer,
            revision=model_config.tokenizer_revision,
            trust_remote_code=model_config.trust_remote_code,
        )
        texts = tokenizer.batch_decode([[token] for token in range(len(tokenizer))])
        return Boundaries.from_texts(texts)
    except Exception as error:
        # Policies then recompute up to their limit instead of up to a sentence's end.
        logger.warning("SemBlend found no sentence boundaries in the tokenizer: %s", error)
        return None


def _folder_of(model_config: Any) -> Path | None:
    folder = Path(str(model_config.model))
    if folder.is_dir():
        return folder
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(
        str(model_config.model), "config.json", revision=model_config.revision
    )
    return Path(found).parent if isinstance(found, str) else None
