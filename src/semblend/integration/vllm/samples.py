"""Several samples of one prompt (`n` > 1): vLLM turns each into a request, `0_ID`, `1_ID`, …"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

_CHILD = re.compile(r"\d+_(?P<parent>.+)", re.DOTALL)


def samples_of(request: Any, live: Iterable[Any]) -> int:
    """Live requests that sample this request's prompt for the same caller, including itself.

    An id that merely looks like a sample's has no siblings with the same prompt.
    """
    parent = _parent(request)
    if parent is None:
        return 1
    tokens = request.prompt_token_ids
    return sum(_parent(other) == parent and other.prompt_token_ids == tokens for other in live)


def _parent(request: Any) -> str | None:
    match = _CHILD.fullmatch(str(request.request_id))
    return None if match is None else match["parent"]
