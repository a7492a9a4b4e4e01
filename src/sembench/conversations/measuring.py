"""How much of a turn's prompt earlier requests hold: as a prefix, and anywhere.

All requests before a turn are known with their answers, as on a server that evicts
nothing. A prefix cache serves whole blocks from position 0. The oracle serves every run
of at least one block, wherever it is. A planner serves what it proposes, plus the prefix.
The last token is always computed, because its logits start the answer.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sembench.blocks import ProposedSpan, TokenArray
from sembench.errors import PlannerError
from sembench.planners import Planner, PlannerDonor, PlannerRequest
from sembench.planners.base import PlannerSettings
from sembench.planners.oracle import OraclePlanner


@dataclass(frozen=True, slots=True, kw_only=True)
class Reusable:
    """Prompt tokens of one turn, by what could serve them."""

    prompt_tokens: int
    prefix_tokens: int
    """What a prefix cache serves."""
    oracle_tokens: int
    """What copying identical runs of at least one block serves."""
    planned_tokens: int | None
    """What the planner serves, including the exact prefix; None without a planner."""
    plan_ms: float | None = None


class EarlierRequests:
    """Everything earlier requests have left behind."""

    def __init__(self, *, block_size: int, tokenizer: str, planner: Planner | None = None) -> None:
        self._block_size = block_size
        self._planner = planner
        self._oracle = OraclePlanner(PlannerSettings(block_size=block_size, tokenizer=tokenizer))
        self._known: dict[str, TokenArray] = {}

    def measure(self, turn_id: str, prompt: TokenArray, text: str = "") -> Reusable:
        """Measure how much of a prompt is known now."""
        limit = len(prompt) - 1
        prefix = max((_shared(prompt, known) for known in self._known.values()), default=0)
        prefix = min(prefix, limit) // self._block_size * self._block_size
        request = PlannerRequest(request_id=turn_id, tokens=prompt, text=text)
        planned, plan_ms = None, None
        if self._planner is not None:
            started = time.perf_counter()
            spans = self._planner.plan(request)
            plan_ms = (time.perf_counter() - started) * 1e3
            planned = self._covered(prompt, spans, prefix, limit)
        return Reusable(
            prompt_tokens=len(prompt),
            prefix_tokens=prefix,
            oracle_tokens=self._covered(prompt, self._oracle.plan(request), prefix, limit),
            planned_tokens=planned,
            plan_ms=plan_ms,
        )

    def remember(self, turn_id: str, tokens: TokenArray, text: str = "") -> None:
        """Record a finished request: its prompt and answer are known from now on."""
        donor = PlannerDonor(donor_id=turn_id, tokens=tokens, text=text)
        self._known[turn_id] = tokens
        self._oracle.register(donor)
        if self._planner is not None:
            self._planner.register(donor)

    def _covered(
        self, prompt: TokenArray, spans: Sequence[ProposedSpan], prefix: int, limit: int
    ) -> int:
        """Count tokens in the prefix or a span once each; a span that is not a copy is an error."""
        covered = np.zeros(len(prompt), dtype=np.bool_)
        covered[:prefix] = True
        for span in spans:
            place = slice(span.target_start, span.target_start + span.length)
            if not _is_copy(prompt[place], self._known, span):
                raise PlannerError(f"a span of donor {span.donor_id!r} is not a copy of the prompt")
            covered[place] = True
        return int(covered[:limit].sum())


def _shared(prompt: TokenArray, known: TokenArray) -> int:
    """Length of the common prefix."""
    size = min(len(prompt), len(known))
    differing = np.flatnonzero(prompt[:size] != known[:size])
    return int(differing[0]) if len(differing) else size


def _is_copy(target: TokenArray, known: Mapping[str, TokenArray], span: ProposedSpan) -> bool:
    donor = known.get(span.donor_id)
    if donor is None:
        return False
    source = donor[span.donor_start : span.donor_start + span.length]
    return len(source) == span.length == len(target) and bool((source == target).all())
