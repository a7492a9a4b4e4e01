"""Tokenizers behind one small interface, by name: ``load_tokenizer(name).encode(text)``."""

from __future__ import annotations

from sembench.tokenizers.base import Tokenizer
from sembench.tokenizers.loading import load_tokenizer
from sembench.tokenizers.stable_regex import STABLE_REGEX, StableRegexTokenizer

__all__ = ["STABLE_REGEX", "StableRegexTokenizer", "Tokenizer", "load_tokenizer"]
