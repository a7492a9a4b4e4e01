"""Any Hugging Face tokenizer: a hub name, a local folder, or a ``tokenizer.json``.

The small ``tokenizers`` package is enough if there is a ``tokenizer.json``.
``transformers`` is used only if there is none (older SentencePiece models).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sembench.blocks import TokenArray
from sembench.errors import MissingExtraError, TokenizerError

TOKENIZER_FILE = "tokenizer.json"


class HuggingFaceTokenizer:
    """Wraps an `encode` that returns ids without special tokens."""

    def __init__(self, name: str, encode: Callable[[str], Sequence[int]]) -> None:
        self._name = name
        self._encode = encode

    @property
    def name(self) -> str:
        """The name or path it was loaded by."""
        return self._name

    def encode(self, text: str) -> TokenArray:
        """Token ids of `text`, shape [tokens]."""
        return np.asarray(self._encode(text), dtype=np.uint32)


def load_huggingface(name: str) -> HuggingFaceTokenizer:
    """Load a tokenizer by hub name, folder or file.

    Raises
    ------
    TokenizerError
        If it does not exist or cannot be read; the message says what was tried.
    """
    path = Path(name)
    if path.is_dir():
        path = path / TOKENIZER_FILE if (path / TOKENIZER_FILE).is_file() else path
    if path.is_file():
        return _from_file(name, path)
    if path.is_dir():
        return _from_transformers(name)
    if name.startswith((".", "/", "~")):
        raise TokenizerError(f"--tokenizer: {name} is not a file or a folder")
    try:
        return _from_hub(name)
    except TokenizerError as error:
        try:
            return _from_transformers(name)
        except (TokenizerError, MissingExtraError):
            raise error from None


def _tokenizers() -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise MissingExtraError(
            package="tokenizers", extra="benchmarks", purpose="a Hugging Face tokenizer"
        ) from error
    return tokenizers


def _wrap(name: str, fast: Any) -> HuggingFaceTokenizer:
    fast.no_truncation()
    fast.no_padding()
    return HuggingFaceTokenizer(name, lambda text: fast.encode(text, add_special_tokens=False).ids)


def _from_file(name: str, path: Path) -> HuggingFaceTokenizer:
    package = _tokenizers()
    try:
        return _wrap(name, package.Tokenizer.from_file(str(path)))
    except Exception as error:  # the package raises bare Exception
        raise TokenizerError(f"--tokenizer: {path} cannot be read ({error})") from error


def _from_hub(name: str) -> HuggingFaceTokenizer:
    package = _tokenizers()
    try:
        return _wrap(name, package.Tokenizer.from_pretrained(name))
    except Exception as error:  # the package raises bare Exception
        raise TokenizerError(
            f"--tokenizer: {name!r} is neither a local folder nor available from the hub or its "
            f"local cache ({error}). Without a network, give a folder that holds {TOKENIZER_FILE} "
            f"or leave the flag out for the built-in tokenizer"
        ) from error


def _from_transformers(name: str) -> HuggingFaceTokenizer:
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise MissingExtraError(
            package="transformers",
            extra="engine",
            purpose=f"a tokenizer without {TOKENIZER_FILE}",
        ) from error
    try:
        loaded = AutoTokenizer.from_pretrained(name)
    except Exception as error:  # a model folder can be broken in many ways
        raise TokenizerError(f"--tokenizer: {name!r} cannot be loaded ({error})") from error
    return HuggingFaceTokenizer(
        name, lambda text: loaded(text, add_special_tokens=False)["input_ids"]
    )
