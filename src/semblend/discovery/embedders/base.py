"""The interface of embedders: texts in, unit vectors out.

An embedder never decides what is reused. What it finds is evidence: a donor that may say the same
thing and is aligned token by token before anything is reused.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from semblend.core.errors import EmbedderError
from semblend.core.tokens import TokenArray

Vectors: TypeAlias = npt.NDArray[np.float32]
"""Rows of shape [n, dimension], each of length 1 (or zero for a text without content)."""
Offsets: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Units:
    """Where a text may be cut, and what each piece costs the embedder.

    Units are ordered and do not overlap. Only white space lies between them.
    """

    starts: Offsets
    """Character position of each unit's first character, shape [n]."""
    ends: Offsets
    """Character position after each unit's last character, shape [n]."""
    costs: Offsets
    """Embedder tokens per unit, shape [n]; at least 1."""

    def __len__(self) -> int:
        return len(self.starts)


def units_of_tokens(offsets: Sequence[tuple[int, int]], words: Sequence[int]) -> Units:
    """Units from a tokenizer's character offsets, keeping the tokens of a word together.

    `words` numbers the word of each token; equal neighbours form one unit.
    """
    edges = np.array(offsets, dtype=np.int64).reshape(-1, 2)
    numbers = np.array(words, dtype=np.int64)
    if len(edges) == 0:
        return Units(starts=edges[:, 0], ends=edges[:, 1], costs=edges[:, 0])
    firsts = np.flatnonzero(np.r_[True, np.diff(numbers) != 0])
    costs = np.diff(np.r_[firsts, len(edges)])
    return Units(starts=edges[firsts, 0], ends=edges[firsts + costs - 1, 1], costs=costs)


class Embedder(ABC):
    """Turns texts into vectors whose dot product is their cosine similarity.

    Thread-safe. The same text gives the same vector in every process that uses the same model.
    """

    name: str
    """The kind, as in SEMBLEND_EMBEDDER."""
    model: str
    """Source of the vectors. Vectors of different models are not comparable."""
    dimension: int
    """Length of a vector; 0 for the `none` embedder."""
    window_tokens: int
    """Embedder tokens per text. Windows have at most this size, so nothing is truncated."""
    max_windows: int
    """Most windows worth embedding for one prompt (see `windows.py` for longer prompts)."""
    accepts_tokens: bool = False
    """Whether token ids can be embedded without text."""

    @property
    def identity(self) -> str:
        """Names the vector space. Embedders with the same identity give comparable vectors."""
        return f"{self.name}:{self.model}:{self.dimension}"

    @abstractmethod
    def embed(self, texts: Sequence[str]) -> Vectors:
        """Vectors of `texts`, shape [len(texts), dimension], L2-normalised."""

    @abstractmethod
    def units(self, text: str) -> Units:
        """Where `text` may be cut into windows. No unit costs more than `window_tokens`."""

    def embed_tokens(self, sequences: Sequence[TokenArray]) -> Vectors:
        """Vectors of token id sequences, if `accepts_tokens`.

        Raises
        ------
        EmbedderError
            If this embedder needs text.
        """
        raise EmbedderError(
            f"embedder {self.name!r} needs the prompt's text, not its token ids; "
            f"pass the text, or use the jaccard embedder ({len(sequences)} sequences given)"
        )


def normalised(vectors: npt.NDArray[np.floating]) -> Vectors:
    """Scale rows to length 1 as float32. Rows without content stay zero."""
    rows = np.ascontiguousarray(vectors, dtype=np.float32)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    unit: Vectors = np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0)
    return unit
