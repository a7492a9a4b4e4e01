"""The tokenizer of the served model: sentence ends, and texts of tokens."""

from __future__ import annotations

import logging
from typing import Any

from semblend.integration.loaded_model import sentence_ends
from semblend.integration.scheduler.setup import Decoder
from semblend.planning.boundaries import Boundaries

logger = logging.getLogger("vllm.semblend")


def boundaries_of(model_config: Any) -> Boundaries | None:
    """Sentence boundaries of the model's vocabulary; None if they cannot be found."""
    if model_config.skip_tokenizer_init:
        return None
    return sentence_ends.boundaries_of(lambda: _tokenizer(model_config), logger)


def decoder_of(model_config: Any) -> Decoder:
    """Decodes tokens to text."""
    tokenizer = _tokenizer(model_config)
    return lambda tokens: str(tokenizer.decode(tokens.tolist()))


def _tokenizer(model_config: Any) -> Any:
    from vllm.tokenizers import get_tokenizer

    return get_tokenizer(
        model_config.tokenizer,
        revision=model_config.tokenizer_revision,
        trust_remote_code=model_config.trust_remote_code,
    )
