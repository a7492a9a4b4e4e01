"""Text to token ids for commands that take text: any Hugging Face tokenizer, or words."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash

from semblend.core.errors import MissingExtraError, RequestError
from semblend.core.tokens import TokenArray

_WORDS = re.compile(r"\w+|[^\w\s]|\s+")


@dataclass(frozen=True, slots=True)
class TokenisedText:
    """Token ids, and the text of each."""

    tokens: TokenArray
    pieces: list[str]


def tokenise(text: str, tokenizer: str = "") -> TokenisedText:
    """Split `text` into tokens.

    Parameters
    ----------
    tokenizer
        A folder with a tokenizer.json, or a hub name. If empty, split into words,
        punctuation and white space, which needs nothing installed.
    """
    if not tokenizer:
        pieces = _WORDS.findall(text)
        ids = [xxhash.xxh32_intdigest(piece.encode()) >> 1 for piece in pieces]
        return TokenisedText(np.asarray(ids, dtype=np.int32), pieces)
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise MissingExtraError(
            package="tokenizers", extra="engine", purpose=f"the tokenizer {tokenizer!r}"
        ) from None
    path = Path(tokenizer) / "tokenizer.json"
    try:
        loaded = (
            Tokenizer.from_file(str(path))
            if path.exists()
            else Tokenizer.from_pretrained(tokenizer)
        )
    except Exception as error:
        raise RequestError(
            f"tokenizer {tokenizer!r}: neither a folder with a tokenizer.json nor a hub name "
            f"({error})"
        ) from error
    encoded = loaded.encode(text, add_special_tokens=False)
    pieces = [text[start:end] for start, end in encoded.offsets]
    return TokenisedText(np.asarray(encoded.ids, dtype=np.int32), pieces)
