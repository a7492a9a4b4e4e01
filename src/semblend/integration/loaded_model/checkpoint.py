"""What a checkpoint's files say about themselves, read where they are; nothing is downloaded.

What cannot be read is None, which means unknown.
"""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path
from typing import Any

from semblend.integration.loaded_model.model_identity import weights_by_files, weights_folder

logger = logging.getLogger("semblend.adapter")


def files_of(name: str, revision: str | None = None) -> Path | None:
    """The folder of a model or tokenizer, if its files are here."""
    try:
        return weights_folder(name, revision)
    except Exception as error:
        logger.debug("no folder of %s: %s", name, error)
        return None


def config_of(folder: Path | None) -> Any:
    """The configuration that transformers reads from a folder."""
    if folder is None:
        return None
    try:
        from transformers import AutoConfig

        return AutoConfig.from_pretrained(folder, local_files_only=True)
    except Exception as error:
        logger.warning("SemBlend cannot read the configuration in %s: %s", folder, error)
        return None


def stored_quantization(folder: Path | None) -> dict[str, str] | None:
    """`quant_algo` and `kv_cache_quant_algo`, as far as a checkpoint was stored quantised."""
    if folder is None:
        return None
    found: dict[str, str] = {}
    try:
        own = folder / "hf_quant_config.json"
        if own.is_file():
            values = json.loads(own.read_text(encoding="utf-8")).get("quantization") or {}
            for name in ("quant_algo", "kv_cache_quant_algo"):
                if values.get(name):
                    found[name] = str(values[name])
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        stated = config.get("quantization_config")
        if isinstance(stated, dict) and "quant_algo" not in found:
            found["quant_algo"] = str(stated.get("quant_method") or "unnamed")
    except (OSError, ValueError, AttributeError):
        return None
    return found


def revision_of(folder: Path | None, hf_config: Any, revision: str | None) -> str | None:
    """What pins the weights: the hub's commit, their files, or a revision that is stated."""
    if folder is None or hf_config is None:
        return f"revision:{revision}" if revision else None
    if folder.parent.name == "snapshots":
        return f"revision:{folder.name}"
    return weights_by_files(str(folder), hf_config)


def tokenizer_revision(tokenizer: str | None) -> str | None:
    """What pins a tokenizer that is not the model's: its files' bytes."""
    folder = None if tokenizer is None else files_of(tokenizer)
    if folder is None:
        return None
    digest = hashlib.sha256()
    for file in sorted(folder.glob("token*")) + sorted(folder.glob("vocab*")):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return "files:" + digest.hexdigest()[:32]
