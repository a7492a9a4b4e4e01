"""How far reused K/V is from cold's: by layer, and by distance from the start of its span."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from semblend.engine.cache.pages import PageIds
from semblend.planning.policies.base import policy_from_spec
from semblend.quality.items import Item
from semblend.quality.lab import Lab, Loaded, Trial

DISTANCES = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
"""Lower edges of the distance buckets, in tokens from the start of the span."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Mean relative deviation of one item's copied tokens."""

    case_id: str
    workload: str
    kind: str
    policy: str
    layers: tuple[float, ...]
    positions: tuple[float | None, ...]
    """One per bucket of DISTANCES; None if no copied token is that far in."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def curves(lab: Lab, item: Item, specs: list[str]) -> list[Curve]:
    """Compare the K/V each policy copies with a cold prefill of the same prompt."""
    spans = lab.spans_of(item)
    if not spans.spans:
        return []
    take: list[PageIds] = []
    try:
        cold = lab.cold(item, item.answer_ids, take)
        lab.logits([cold])
        policies = {spec: policy_from_spec(spec) for spec in specs}
        loaded = Loaded(lab, item, spans, list(policies.values()), take)
        found: list[Curve] = []
        for spec, policy in policies.items():
            trial = lab.trial(item, spans, loaded.under(policy), policy, item.answer_ids, take)
            lab.logits([trial])
            found.append(_curve(lab, trial, cold, spec))
        return found
    finally:
        for pages in take:
            lab.pool.allocator.release(pages)


def _curve(lab: Lab, trial: Trial, cold: Trial, spec: str) -> Curve:
    size = len(trial.item.tokens)
    borrowed = lab.pool.read(trial.table, 0, size).float().flatten(3)
    exact = lab.pool.read(cold.table, 0, size).float().flatten(3)
    norm = torch.linalg.vector_norm(exact, dim=-1).clamp(min=1e-9)
    deviation = (torch.linalg.vector_norm(borrowed - exact, dim=-1) / norm).mean(1).cpu().numpy()
    distance = np.full(size, -1)
    if trial.plan is not None:
        for span in trial.plan.spans:
            distance[span.target_start : span.target_end] = np.arange(span.length)
        for run in trial.plan.recompute:
            distance[run.start : run.end] = -1
    copied = distance >= 0
    bucket = np.searchsorted(DISTANCES, distance, side="right") - 1
    by_token = deviation[1:].mean(0)
    case = trial.item.case
    return Curve(
        case_id=case.case_id,
        workload=case.workload,
        kind=case.kind,
        policy=spec,
        layers=tuple(float(value) for value in deviation[:, copied].mean(1)),
        positions=tuple(
            float(by_token[copied & (bucket == at)].mean())
            if bool((copied & (bucket == at)).any())
            else None
            for at in range(len(DISTANCES))
        ),
    )
