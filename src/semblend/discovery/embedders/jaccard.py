"""The embedder without a model: hashed sets of shingles.

A window is the *set* A of its word shingles (single words and pairs of neighbours). Each shingle is
hashed to one of `dimension` places with a sign, and the signed counts are the vector. The expected
cosine of two such vectors is the set cosine |A∩B| / sqrt(|A| |B|), with a standard error of about 1
/ sqrt(dimension). For sets of equal size the Jaccard index is c / (2 − c). Because of the pairs,
word order counts: a text and its reversal are not alike.

Hashes are xxh3 of the folded word's UTF-8 (or a mix of the token id), never Python's own `hash`, so
vectors are equal in every process and on every machine.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import xxhash

from semblend.core.tokens import TokenArray
from semblend.discovery.embedders.base import Embedder, Units, Vectors, normalised

# Scripts without spaces are split into characters, and word length is limited, so that one changed
# letter cannot change a whole page's shingle.
_UNSPACED = r"\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\u0e00-\u0eff"
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]{{1,64}}|[^\w\s]")

_PAIR = np.uint64(0x9E3779B97F4A7C15)
_MIX_A = np.uint64(0xBF58476D1CE4E5B9)
_MIX_B = np.uint64(0x94D049BB133111EB)

Hashes = npt.NDArray[np.uint64]


class JaccardEmbedder(Embedder):
    """Signed feature hashing of shingle sets. Needs neither a model nor text."""

    name = "jaccard"
    model = "shingles-v1"
    window_tokens = 256
    max_windows = 512
    accepts_tokens = True

    def __init__(self, dimension: int = 512) -> None:
        self.dimension = dimension

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Vectors of the texts' word shingles, shape [n, dimension]."""
        return self._stack([_hash_words(text) for text in texts])

    def embed_tokens(self, sequences: Sequence[TokenArray]) -> Vectors:
        """Vectors of the sequences' token shingles, shape [n, dimension]."""
        return self._stack([_mixed(np.asarray(ids).astype(np.uint64)) for ids in sequences])

    def units(self, text: str) -> Units:
        """Words and signs, one token each."""
        spans = [match.span() for match in _WORD.finditer(text)]
        edges = np.array(spans, dtype=np.int64).reshape(-1, 2)
        return Units(
            starts=edges[:, 0], ends=edges[:, 1], costs=np.ones(len(edges), dtype=np.int64)
        )

    def _stack(self, hashed: Sequence[Hashes]) -> Vectors:
        rows = np.zeros((len(hashed), self.dimension), dtype=np.float32)
        for row, items in zip(rows, hashed, strict=True):
            row[:] = self._place(_shingles(items))
        return normalised(rows)

    def _place(self, shingles: Hashes) -> npt.NDArray[np.float64]:
        places = (shingles % np.uint64(self.dimension)).astype(np.int64)
        signs = 1.0 - 2.0 * (shingles >> np.uint64(63)).astype(np.float64)
        return np.bincount(places, weights=signs, minlength=self.dimension).astype(np.float64)


def _hash_words(text: str) -> Hashes:
    words = (word.casefold().encode("utf-8", "surrogatepass") for word in _WORD.findall(text))
    return np.fromiter((xxhash.xxh3_64_intdigest(word) for word in words), dtype=np.uint64)


def _shingles(items: Hashes) -> Hashes:
    """The set of shingles of a sequence: single items and pairs of neighbours."""
    pairs = _mixed(items[:-1] * _PAIR + items[1:])
    return np.unique(np.concatenate([items, pairs]))


def _mixed(values: Hashes) -> Hashes:
    """A bijective scramble of 64-bit values (the finaliser of splitmix64)."""
    values = values + _PAIR
    values = (values ^ (values >> np.uint64(30))) * _MIX_A
    values = (values ^ (values >> np.uint64(27))) * _MIX_B
    return values ^ (values >> np.uint64(31))
