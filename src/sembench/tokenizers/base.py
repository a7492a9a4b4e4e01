"""The tokenizer interface."""

from __future__ import annotations

from typing import Protocol

from sembench.blocks import TokenArray


class Tokenizer(Protocol):
    """Turns text into token ids, deterministically."""

    @property
    def name(self) -> str:
        """The name stored in a result."""
        ...

    def encode(self, text: str) -> TokenArray:
        """Token ids of `text`, shape [tokens], without special tokens added."""
        ...
