"""Where sentences end in the vocabulary of the model vLLM serves."""

from __future__ import annotations

import logging
from typing import Any

from semblend.planning.boundaries import Boundaries

logger = logging.getLogger("vllm.semblend")


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
