"""Resolves a tokenizer's name to the tokenizer."""

from __future__ import annotations

from sembench.tokenizers.base import Tokenizer
from sembench.tokenizers.huggingface import load_huggingface
from sembench.tokenizers.stable_regex import STABLE_REGEX, StableRegexTokenizer


def load_tokenizer(name: str | None) -> Tokenizer:
    """Load the tokenizer `name`: built in, or a Hugging Face name, folder or file.

    >>> load_tokenizer(None).name
    'stable-regex-sha256'
    """
    if not name or name == STABLE_REGEX:
        return StableRegexTokenizer()
    return load_huggingface(name)
