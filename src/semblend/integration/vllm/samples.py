"""Several samples of one prompt (`n` > 1): vLLM makes a request of each, `0_ID`, `1_ID`, …

Computed, the first one fills the prefix cache and the others hit it in the same step. Blocks with
approximate K/V are a request's own, so that each would be loaded for itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from semblend.core.plan import Plan

_CHILD = re.compile(r"\d+_(?P<parent>.+)", re.DOTALL)


def samples_of(request: Any, live: Iterable[Any]) -> int:
    """Live requests that sample the same prompt as this one for the same caller, itself included.

    An id that only looks like a sample's has no siblings with the same prompt.
    """
    parent = _parent(request)
    if parent is None:
        return 1
    tokens = request.prompt_token_ids
    return sum(_parent(other) == parent and other.prompt_token_ids == tokens for other in live)


def cheaper_computed_once(plan: Plan, samples: int) -> bool:
    """Whether one cold prefill that all samples share costs less than a load for each."""
    return samples > 1 and 0 < plan.cost.cold <= samples * plan.cost.planned


def _parent(request: Any) -> str | None:
    match = _CHILD.fullmatch(str(request.request_id))
    return None if match is None else match["parent"]
