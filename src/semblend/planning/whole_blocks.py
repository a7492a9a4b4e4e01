"""Rounding to blocks, for engines that work in whole blocks."""

from __future__ import annotations

from semblend.core.errors import PlanError
from semblend.discovery.runs import DonorRun


def region_end(last_span_end: int, *, prompt_tokens: int, block_size: int) -> int:
    """End of the reuse region: a block boundary that leaves at least one token of tail."""
    if block_size < 1:
        raise PlanError(f"block_size: expected at least 1, got {block_size}")
    return min(last_span_end, prompt_tokens - 1) // block_size * block_size


def to_whole_blocks(run: DonorRun, block_size: int) -> DonorRun | None:
    """The part of a run that fills whole target blocks, or None."""
    start = -(-run.target_start // block_size) * block_size
    end = run.target_end // block_size * block_size
    if start >= end:
        return None
    return DonorRun(
        donor_id=run.donor_id,
        donor_start=run.donor_start + start - run.target_start,
        target_start=start,
        length=end - start,
    )
