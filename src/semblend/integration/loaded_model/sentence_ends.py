"""Where sentences end in the served model's vocabulary."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from semblend.planning.boundaries import Boundaries


def boundaries_of(tokenizer: Callable[[], Any], logger: logging.Logger) -> Boundaries | None:
    """Sentence boundaries of the vocabulary; None if they cannot be found.

    Policies then recompute up to their limit instead of up to the end of a sentence.
    """
    try:
        loaded = tokenizer()
        if loaded is None:
            return None
        texts = loaded.batch_decode([[token] for token in range(len(loaded))])
        return Boundaries.from_texts(texts)
    except Exception as error:
        logger.warning("SemBlend cannot find sentence boundaries in the tokenizer: %s", error)
        return None
