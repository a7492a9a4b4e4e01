"""Verified runs between a target and one donor."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DonorRun:
    """A verified run: target[target_start:+length) = donor[donor_start:+length)."""

    donor_id: str
    donor_start: int
    target_start: int
    length: int

    @property
    def target_end(self) -> int:
        """First target position after the run."""
        return self.target_start + self.length


def join_runs(runs: list[DonorRun]) -> list[DonorRun]:
    """Merge runs on the same donor and diagonal that overlap or touch (pieces of one donor)."""
    runs.sort(key=lambda run: (run.donor_id, run.donor_start - run.target_start, run.target_start))
    joined: list[DonorRun] = []
    for run in runs:
        last = joined[-1] if joined else None
        if (
            last is not None
            and last.donor_id == run.donor_id
            and last.donor_start - last.target_start == run.donor_start - run.target_start
            and run.target_start <= last.target_end
        ):
            if run.target_end > last.target_end:
                joined[-1] = DonorRun(
                    donor_id=last.donor_id,
                    donor_start=last.donor_start,
                    target_start=last.target_start,
                    length=run.target_end - last.target_start,
                )
            continue
        joined.append(run)
    joined.sort(key=lambda run: (run.target_start, -run.length))
    return joined
