"""The floor: what an exact block cache finds, expressed as a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sembench.blocks import ProposedSpan, TokenArray
from sembench.planners.base import PlannerDonor, PlannerRequest, PlannerSettings


class ExactBlockPlanner:
    """Proposes full blocks of the request that a donor also has as a full block."""

    def __init__(self, settings: PlannerSettings) -> None:
        self._size = settings.block_size
        self._blocks: dict[bytes, dict[str, int]] = {}
        self._donors: dict[str, TokenArray] = {}

    def register(self, donor: PlannerDonor) -> None:
        """Record where each of the donor's blocks is."""
        self._donors[donor.donor_id] = donor.tokens
        for start, block in self._blocks_of(donor.tokens):
            self._blocks.setdefault(block, {}).setdefault(donor.donor_id, start)

    def forget(self, donor_id: str) -> None:
        for _, block in self._blocks_of(self._donors.pop(donor_id, None)):
            holders = self._blocks.get(block)
            if holders is not None:
                holders.pop(donor_id, None)
                if not holders:
                    del self._blocks[block]

    def describe(self) -> Mapping[str, Any]:
        return {"name": "exact-block"}

    def plan(self, request: PlannerRequest) -> Sequence[ProposedSpan]:
        """One span per known block."""
        spans = []
        for start, block in self._blocks_of(request.tokens):
            for donor_id, donor_start in self._blocks.get(block, {}).items():
                spans.append(
                    ProposedSpan(
                        donor_id=donor_id,
                        donor_start=donor_start,
                        target_start=start,
                        length=self._size,
                    )
                )
                break
        return spans

    def _blocks_of(self, tokens: TokenArray | None) -> list[tuple[int, bytes]]:
        if tokens is None:
            return []
        return [
            (start, tokens[start : start + self._size].tobytes())
            for start in range(0, len(tokens) - self._size + 1, self._size)
        ]
