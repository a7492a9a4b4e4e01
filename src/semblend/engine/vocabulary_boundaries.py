"""Sentence boundaries of a tokenizer's vocabulary."""

from __future__ import annotations

from typing import Any

from semblend.planning.boundaries import Boundaries


def boundaries_of(tokenizer: Any) -> Boundaries | None:
    """Decode every token id once. Returns None for a model without a tokenizer."""
    if tokenizer is None:
        return None
    texts = tokenizer.batch_decode([[token] for token in range(len(tokenizer))])
    return Boundaries.from_texts(texts)
