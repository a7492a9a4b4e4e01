"""The static embedder: a table of token vectors, averaged.

The table and its tokenizer are in wordllama's wheel (32,000 tokens, 256 dimensions), so nothing is
downloaded. They are read directly, because wordllama's own loader looks for its tokenizer in a
folder its wheel does not have and then uses the network, and importing it reconfigures the
process's logging.

Texts may have any length; windows keep a prompt's passages apart. The table ignores word order: a
text and its reversal have the same vector.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from semblend.core.errors import EmbedderError, MissingExtraError
from semblend.discovery.embedders.base import Embedder, Units, Vectors, normalised, units_of_tokens
from semblend.discovery.embedders.model_files import package_folder

_WEIGHTS = Path("weights", "l2_supercat_256.safetensors")
_TOKENIZER = Path("tokenizers", "l2_supercat_tokenizer_config.json")
_TENSOR = "embedding.weight"
_PURPOSE = "the static embedder"


class StaticEmbedder(Embedder):
    """Mean of wordllama's token vectors, at about a microsecond per token."""

    name = "static"
    model = "wordllama-l2-supercat-256"
    window_tokens = 256
    max_windows = 512

    def __init__(self) -> None:
        folder = package_folder("wordllama")
        if folder is None:
            raise MissingExtraError(package="wordllama", extra="embedder", purpose=_PURPOSE)
        for part in (_WEIGHTS, _TOKENIZER):
            if not (folder / part).is_file():
                raise EmbedderError(f"{_PURPOSE}: the installed wordllama has no {part}")
        self._tokenizer = _load_tokenizer(folder / _TOKENIZER)
        self._table = _load_table(folder / _WEIGHTS)
        self.dimension = self._table.shape[1]

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Normalised mean of each text's token vectors, shape [n, dimension]."""
        rows = np.zeros((len(texts), self.dimension), dtype=np.float32)
        encodings = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        for row, encoding in zip(rows, encodings, strict=True):
            if encoding.ids:
                row[:] = self._table[encoding.ids].mean(axis=0)
        return normalised(rows)

    def units(self, text: str) -> Units:
        """The table's own tokens. The bytes of one rare character stay together."""
        offsets = self._tokenizer.encode(text, add_special_tokens=False).offsets
        return units_of_tokens(offsets, [start for start, _ in offsets])


def _load_tokenizer(path: Path) -> Any:
    try:
        tokenizers = importlib.import_module("tokenizers")
    except ImportError as error:
        raise MissingExtraError(package="tokenizers", extra="embedder", purpose=_PURPOSE) from error
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _load_table(path: Path) -> Vectors:
    try:
        safetensors = importlib.import_module("safetensors.numpy")
    except ImportError as error:
        raise MissingExtraError(
            package="safetensors", extra="embedder", purpose=_PURPOSE
        ) from error
    table: Vectors = safetensors.load_file(str(path))[_TENSOR].astype(np.float32)
    return table
