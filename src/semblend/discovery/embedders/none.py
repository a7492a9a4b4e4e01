"""The null embedder, for discovery by tokens only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from semblend.core.tokens import TokenArray
from semblend.discovery.embedders.base import Embedder, Units, Vectors


class NoneEmbedder(Embedder):
    """Vectors of dimension 0: no prompt resembles another, at no cost."""

    name = "none"
    model = "none"
    dimension = 0
    window_tokens = 1
    max_windows = 0
    accepts_tokens = True

    def embed(self, texts: Sequence[str]) -> Vectors:
        """An empty row for each text, shape [n, 0]."""
        return np.empty((len(texts), 0), dtype=np.float32)

    def embed_tokens(self, sequences: Sequence[TokenArray]) -> Vectors:
        """An empty row for each sequence, shape [n, 0]."""
        return np.empty((len(sequences), 0), dtype=np.float32)

    def units(self, text: str) -> Units:
        """No units, so no windows are cut."""
        empty = np.empty(0, dtype=np.int64)
        return Units(starts=empty, ends=empty, costs=empty)
