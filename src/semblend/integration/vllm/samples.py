"""Several samples of one prompt (`n` > 1): vLLM turns each into a request, `0_ID`, `1_ID`, …"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, TypeAlias

_CHILD = re.compile(r"\d+_(?P<parent>.+)", re.DOTALL)

SampleKey: TypeAlias = tuple[str, int] | None
"""Equal for samples of one prompt; None for a request that is no sample."""


def sample_key(request: Any) -> SampleKey:
    """The parent that a request's id names, and a hash of its prompt. Takes time: keep it.

    An id that merely looks like a sample's has no siblings with the same prompt.
    """
    match = _CHILD.fullmatch(str(request.request_id))
    return None if match is None else (match["parent"], hash(tuple(request.prompt_token_ids or ())))


def samples_of(key: SampleKey, live: Iterable[SampleKey]) -> int:
    """Live requests that sample this request's prompt for the same caller, including itself."""
    return 1 if key is None else sum(other == key for other in live)
