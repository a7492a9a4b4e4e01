"""Token ids are checked once, on entry. After that they are read-only int32 arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from semblend.core.errors import InvalidTokensError

TokenArray: TypeAlias = npt.NDArray[np.int32]
TokenIds: TypeAlias = Sequence[int] | npt.NDArray[np.integer]

MAX_TOKEN_ID = 2**31 - 1
MAX_PROMPT_TOKENS = 1 << 24
"""Far above any served context: a larger array is a mistake, not a prompt."""


def as_token_array(tokens: TokenIds, *, name: str = "tokens") -> TokenArray:
    """Return `tokens` as a one-dimensional contiguous int32 array.

    Raises
    ------
    InvalidTokensError
        If the input is not one-dimensional, not integers, or out of [0, 2**31).
    """
    if isinstance(tokens, np.ndarray) and tokens.dtype == np.int32 and tokens.ndim == 1:
        array = tokens
    else:
        array = _convert(tokens, name)
    if array.size > MAX_PROMPT_TOKENS:
        raise InvalidTokensError(
            f"{name}: {array.size} token ids, but a prompt has at most {MAX_PROMPT_TOKENS}"
        )
    if array.size and int(array.min()) < 0:
        where = int(np.argmax(array < 0))
        raise InvalidTokensError(f"{name}[{where}] = {int(array[where])}: ids start at 0")
    return np.ascontiguousarray(array)


def _convert(tokens: TokenIds, name: str) -> TokenArray:
    try:
        raw = np.asarray(tokens)
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidTokensError(f"{name}: not a flat sequence of token ids ({error})") from error
    if raw.ndim != 1:
        raise InvalidTokensError(f"{name}: expected one dimension, got shape {raw.shape}")
    if raw.size == 0:
        return np.empty(0, dtype=np.int32)
    if raw.dtype.kind not in "iu":
        raise InvalidTokensError(f"{name}: expected integers, got values of type {raw.dtype}")
    if int(raw.max()) > MAX_TOKEN_ID:
        where = int(np.argmax(raw > MAX_TOKEN_ID))
        raise InvalidTokensError(
            f"{name}[{where}] = {int(raw[where])}: the largest id is {MAX_TOKEN_ID}"
        )
    if int(raw.min()) < 0:
        where = int(np.argmax(raw < 0))
        raise InvalidTokensError(f"{name}[{where}] = {int(raw[where])}: ids start at 0")
    return raw.astype(np.int32)
