"""A word-piece tokenizer without truncation or padding: gives ids, and where a text may be cut."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from semblend.core.errors import EmbedderError, MissingExtraError
from semblend.discovery.embedders.base import Units, units_of_tokens

SPECIAL_TOKENS = 2
"""Places that [CLS] and [SEP] take in every text."""


class WordPieces:
    """A private tokenizer, so that no other user's padding or truncation applies.

    Encoding does not change it, so threads may share it.
    """

    def __init__(self, tokenizer: Any) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer

    @classmethod
    def from_file(cls, path: Path, *, extra: str) -> WordPieces:
        try:
            tokenizers = importlib.import_module("tokenizers")
        except ImportError as error:
            raise MissingExtraError(
                package="tokenizers", extra=extra, purpose=f"reading {path.name}"
            ) from error
        try:
            return cls(tokenizers.Tokenizer.from_file(str(path)))
        except Exception as error:  # the library raises plain Exception
            raise EmbedderError(f"{path}: not a tokenizer ({error})") from error

    @classmethod
    def from_text(cls, text: str) -> WordPieces:
        """Read the JSON of an already loaded fast tokenizer."""
        tokenizers = importlib.import_module("tokenizers")
        return cls(tokenizers.Tokenizer.from_str(text))

    def ids(self, texts: list[str]) -> list[list[int]]:
        """Ids of each text, with special tokens."""
        return [encoding.ids for encoding in self._tokenizer.encode_batch(texts)]

    def units(self, text: str) -> Units:
        """The tokenizer's words. A window never starts inside one."""
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        # A special token written in the text belongs to no word, so it counts as one.
        words = [-1 - i if word is None else word for i, word in enumerate(encoding.word_ids)]
        return units_of_tokens(encoding.offsets, words)
