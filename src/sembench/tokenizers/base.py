"""What SemBench needs of a tokenizer."""

from __future__ import annotations

from typing import Protocol

from sembench.blocks import TokenArray


class Tokenizer(Protocol):
    """Turns text into token ids, the same way every time."""

    @property
    def name(self) -> str:
        """What a result says was used."""
        ...

    def encode(self, text: str) -> TokenArray:
        """Token ids of `text`, shape [tokens], without special tokens added."""
        ...
