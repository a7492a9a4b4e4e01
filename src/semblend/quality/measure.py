"""Measures one item under many policies against its own cold answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from semblend.core.plan import Plan, SpanKind
from semblend.core.tokens import TokenArray
from semblend.engine.cache.pages import PageIds
from semblend.planning.policies.base import policy_from_spec
from semblend.quality.items import Item
from semblend.quality.lab import Lab, Loaded, Trial
from semblend.quality.scores import divergence, rouge_l, token_f1

ANSWER_TOKENS = 12
ROWS_A_PASS = 16_384


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One policy's result on one item. Flat, one JSON line each."""

    case_id: str
    workload: str
    kind: str
    policy: str
    """A spec, or "cold" for the second cold run that gives the noise floor."""
    depth: str
    edits: int
    prompt_tokens: int
    reusable_tokens: int
    behind_edit_tokens: int
    recomputed_tokens: int
    """In spans that are still partly reused."""
    declined_tokens: int
    """In spans that the policy recomputes completely."""
    probe_tokens: float
    answer: str
    cold_answer: str
    expected: str
    right: bool
    cold_right: bool
    same: bool
    """Whether the greedy answer equals cold's, token for token."""
    leaked: bool
    cold_leaked: bool
    f1: float
    rouge_l: float
    kl: float
    kl_worst: float
    top1: float
    nll: float
    cold_nll: float
    cold_margin: float = 0.0
    """Smallest margin in nats, over the answer's tokens, between cold's choice and the next best.
    Records of 0.4 have none.
    """

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def measure(
    lab: Lab, item: Item, specs: Sequence[str], *, cold_right_only: bool = False
) -> list[Record]:
    """Judge every policy on one item. Items without reusable spans give no records.

    With `cold_right_only`, an item that cold answers wrongly gives none either, and costs only
    cold's answer.
    """
    spans = lab.spans_of(item)
    if not spans.spans:
        return []
    take: list[PageIds] = []
    try:
        cold = _cold(lab, item, take, right_only=cold_right_only)
        if cold is None:
            return []
        return _measure(lab, item, spans, cold, specs, take)
    finally:
        for pages in take:
            lab.pool.allocator.release(pages)


def _measure(
    lab: Lab,
    item: Item,
    spans: Plan,
    cold: _Cold,
    specs: Sequence[str],
    take: list[PageIds],
) -> list[Record]:
    policies = {spec: policy_from_spec(spec) for spec in specs if spec != "cold"}
    loaded = Loaded(lab, item, spans, list(policies.values()), take)
    records: list[Record] = []
    todo = list(specs)
    while todo:
        kept = len(take)
        batch: list[tuple[str, Trial]] = []
        rows = 0
        while todo and rows < ROWS_A_PASS:
            spec = todo.pop(0)
            if spec == "cold":
                trial = lab.cold(item, cold.forced, take)
            else:
                policy = policies[spec]
                trial = lab.trial(item, spans, loaded.under(policy), policy, cold.forced, take)
            batch.append((spec, trial))
            rows += sum(len(run.tokens) for run in trial.runs())
        for (spec, trial), logits in zip(
            batch, lab.logits([trial for _, trial in batch]), strict=True
        ):
            answer = cold.answer
            same = bool((logits.argmax(-1) == cold.logits.argmax(-1)).all())
            if not same and not item.case.continuation:
                answer = _text(lab, lab.greedy(trial, ANSWER_TOKENS))
            records.append(_record(spec, trial, spans, cold, logits, answer, same))
        for used in take[kept:]:
            lab.pool.allocator.release(used)
        del take[kept:]
    return records


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Cold:
    """The reference: cold's logits over its own greedy answer, or over the continuation."""

    forced: TokenArray
    logits: torch.Tensor
    answer: str


def _cold(lab: Lab, item: Item, take: list[PageIds], *, right_only: bool) -> _Cold | None:
    forced = item.answer_ids
    trial = lab.cold(item, forced, take)
    logits = lab.logits([trial])[0]
    chosen = logits.argmax(-1).cpu().numpy()
    if item.case.continuation or np.array_equal(chosen, forced):
        answer = "" if item.case.continuation else item.case.answer
        return _Cold(forced=forced, logits=logits, answer=answer)
    if right_only:
        return None
    greedy = lab.greedy(trial, ANSWER_TOKENS)
    forced = np.asarray([*greedy, item.answer_ids[-1]], dtype=np.int32)
    trial = lab.cold(item, forced, take)
    return _Cold(forced=forced, logits=lab.logits([trial])[0], answer=_text(lab, greedy))


def _text(lab: Lab, ids: list[int]) -> str:
    return str(lab.model.tokenizer.decode(ids, skip_special_tokens=True)).strip()


def _record(
    spec: str,
    trial: Trial,
    spans: Plan,
    cold: _Cold,
    logits: torch.Tensor,
    answer: str,
    same: bool,
) -> Record:
    case = trial.item.case
    away = divergence(cold.logits, logits, torch.from_numpy(cold.forced))
    recomputed, declined = price(trial.plan)
    return Record(
        case_id=case.case_id,
        workload=case.workload,
        kind=case.kind,
        policy=spec,
        depth=case.depth,
        edits=case.edits,
        prompt_tokens=len(trial.item.tokens),
        reusable_tokens=sum(span.length for span in spans.spans),
        behind_edit_tokens=sum(
            span.length for span in spans.spans if span.kind is SpanKind.BEHIND_EDIT
        ),
        recomputed_tokens=recomputed,
        declined_tokens=declined,
        probe_tokens=round(trial.probe_tokens, 1),
        answer=answer,
        cold_answer=cold.answer,
        expected=case.answer,
        right=same if case.continuation else answer == case.answer,
        cold_right=bool(case.continuation) or cold.answer == case.answer,
        same=same,
        leaked=states(answer, case.leaked),
        cold_leaked=states(cold.answer, case.leaked),
        f1=token_f1(answer, case.answer),
        rouge_l=rouge_l(answer, case.answer),
        kl=away.kl,
        kl_worst=away.kl_worst,
        top1=away.top1,
        nll=away.nll,
        cold_nll=away.cold_nll,
        cold_margin=round(_margin(cold.logits), 4),
    )


def _margin(logits: torch.Tensor) -> float:
    """Smallest distance between the best and second-best token, over positions."""
    best = logits.float().topk(2, dim=-1).values
    return float((best[:, 0] - best[:, 1]).min())


def price(plan: Plan | None) -> tuple[int, int]:
    """Tokens recomputed in partly reused spans, and tokens of spans recomputed completely."""
    if plan is None:
        return 0, 0
    copied: dict[int, int] = {}
    for piece in plan.copies:
        for number, span in enumerate(plan.spans):
            if span.target_start <= piece.target_start < span.target_end:
                copied[number] = copied.get(number, 0) + piece.length
    recomputed = declined = 0
    for number, span in enumerate(plan.spans):
        if number in copied:
            recomputed += span.length - copied[number]
        else:
            declined += span.length
    return recomputed, declined


def states(answer: str, values: Sequence[str]) -> bool:
    """Whether an answer states one of these values."""
    return any(value in answer for value in values)
