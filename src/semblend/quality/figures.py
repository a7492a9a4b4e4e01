"""From records to figures: one row per cell, that is, one workload under one policy."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from semblend.quality.intervals import bootstrap_mean, wilson
from semblend.quality.measure import Record
from semblend.quality.scores import rouge_l, token_f1

CONTROL = "control"
PROSE = "continuation"
READING = "reading"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One policy's results on one workload. Shares are in [0, 1], intervals are 95 %."""

    workload: str
    """`workload` or `workload_kind`, as in cell names."""
    policy: str
    items: int
    cold_right: float
    right: float
    right_interval: tuple[float, float]
    difference: float
    """right - cold_right, over the same items."""
    difference_interval: tuple[float, float]
    same: float
    same_interval: tuple[float, float]
    towards_donor: int
    """Answers that state a donor's fact when cold's does not."""
    f1_difference: float
    rouge_l_difference: float
    kl: float
    kl_interval: tuple[float, float]
    kl_p99: float
    top1: float
    perplexity_ratio: float
    recompute: float
    """Recomputed share of the tokens in spans that are partly reused."""
    declined: float
    """Share of reusable tokens in spans that are not reused at all."""
    probe: float
    """Cost of the policy's probe, as a share of the prompt."""

    @property
    def kept(self) -> float:
        """Share of cold's right answers that are kept; 1 if cold has none."""
        return self.right / self.cold_right if self.cold_right else 1.0

    @property
    def fall(self) -> float:
        """How far the worst answer metric is below cold; negative if all are above."""
        return -min(self.difference, self.f1_difference, self.rouge_l_difference)

    @property
    def price(self) -> float:
        """Share of reusable tokens the policy computes, including its probe."""
        return self.declined + (1 - self.declined) * self.recompute + self.probe

    def to_dict(self) -> dict[str, Any]:
        """Rounded values, ready for JSON."""
        return {name: _rounded(value) for name, value in asdict(self).items()}


def cell_of(record: Record) -> str:
    """A record's workload, as named in cells."""
    if record.workload in ("edited", CONTROL):
        return f"{record.workload}_{record.kind}"
    return record.workload


def figures_of(records: Iterable[Record]) -> list[Figures]:
    """One row for each workload and policy, in order of first appearance."""
    groups: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in records:
        groups[cell_of(record), record.policy].append(record)
    return [_figures(workload, policy, rows) for (workload, policy), rows in groups.items()]


def noise_floor(records: Iterable[Record]) -> dict[str, float]:
    """Compare cold with itself: computed alone, and again in a pass with others."""
    kl = [record.kl for record in records if record.policy == "cold"]
    same = [record.same for record in records if record.policy == "cold"]
    if not kl:
        return {"items": 0, "kl_mean": 0.0, "kl_p99": 0.0, "same": 1.0}
    return {
        "items": len(kl),
        "kl_mean": float(np.mean(kl)),
        "kl_p99": float(np.quantile(kl, 0.99)),
        "same": float(np.mean(same)),
    }


def _figures(workload: str, policy: str, rows: Sequence[Record]) -> Figures:
    count = len(rows)
    reusable = sum(row.reusable_tokens for row in rows)
    declined = sum(row.declined_tokens for row in rows)
    differences = [float(row.right) - float(row.cold_right) for row in rows]
    kl = [row.kl for row in rows]
    judged = [row for row in rows if row.expected]
    return Figures(
        workload=workload,
        policy=policy,
        items=count,
        cold_right=sum(row.cold_right for row in rows) / count,
        right=sum(row.right for row in rows) / count,
        right_interval=wilson(sum(row.right for row in rows), count),
        difference=sum(differences) / count,
        difference_interval=bootstrap_mean(differences),
        same=sum(row.same for row in rows) / count,
        same_interval=wilson(sum(row.same for row in rows), count),
        towards_donor=sum(row.leaked and not row.cold_leaked for row in rows),
        f1_difference=_mean([row.f1 - token_f1(row.cold_answer, row.expected) for row in judged]),
        rouge_l_difference=_mean(
            [row.rouge_l - rouge_l(row.cold_answer, row.expected) for row in judged]
        ),
        kl=sum(kl) / count,
        kl_interval=bootstrap_mean(kl),
        kl_p99=float(np.quantile(kl, 0.99)),
        top1=sum(row.top1 for row in rows) / count,
        perplexity_ratio=math.exp(_mean([row.nll - row.cold_nll for row in rows])),
        recompute=sum(row.recomputed_tokens for row in rows) / max(1, reusable - declined),
        declined=declined / max(1, reusable),
        probe=sum(row.probe_tokens for row in rows) / sum(row.prompt_tokens for row in rows),
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, tuple):
        return [_rounded(part) for part in value]
    return value
