"""Items through an engine that serves: cold, its donors, then warm under each policy."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from semblend.quality.items import Case, Item
from semblend.quality.measure import Record, states
from semblend.quality.scores import rouge_l, token_f1
from semblend.quality.seam import MeasuredFacts, Work
from semblend.quality.served.asking import Asker, ServedReply, ServedRequest
from semblend.quality.served.comparing import compared, margin

ANSWER_TOKENS = 24
NAIVE = "none"
"""Reuses every span whole: what it reuses is what can be reused."""
REASONING, REASONED = "<think>", "</think>"
"""What thinking models put around their reasoning; the answer stands behind it."""


class MeasuredServer:
    """An engine that serves, behind the seam."""

    def __init__(self, asker: Asker, *, answer_tokens: int = ANSWER_TOKENS) -> None:
        self._asker = asker
        self._most = answer_tokens
        self._turn = 0
        self._run = secrets.token_hex(4)
        """Keeps the donors of a run that was stopped, in a server that goes on, apart."""

    @property
    def facts(self) -> MeasuredFacts:
        """What it is."""
        return self._asker.facts

    @property
    def tokenizer(self) -> Any:
        """The model's."""
        return self._asker.tokenizer

    @property
    def batch(self) -> int:
        """Items to ask about at once."""
        return self._asker.batch

    def measure(self, work: Sequence[Work], *, cold_right_only: bool = False) -> list[list[Record]]:
        """Records of each item; naive reuse is always asked, for it says what can be reused."""
        self._turn += 1
        colds = self._asker.ask([self._cold(item, "cold") for item, _ in work])
        if not cold_right_only:
            return self._measure(work, colds)
        right = [at for at, (item, _) in enumerate(work) if _cold_right(item.case, colds[at])]
        found = self._measure([work[at] for at in right], [colds[at] for at in right])
        by_place = dict(zip(right, found, strict=True))
        return [by_place.get(at, []) for at in range(len(work))]

    def _measure(self, work: Sequence[Work], colds: Sequence[ServedReply]) -> list[list[Record]]:
        if not work:
            return []
        items = [item for item, _ in work]
        warm: dict[str, dict[int, ServedReply]] = {}
        specs = dict.fromkeys((NAIVE, *(spec for _, wanted in work for spec in wanted)))
        if self._asker.forgets_prefixes:
            self._donate(items, "")
        for spec in specs:
            mine = [at for at, (_, wanted) in enumerate(work) if spec in wanted or spec == NAIVE]
            if spec == "cold":
                replies = self._asker.ask([self._cold(items[at], "again") for at in mine])
            else:
                replies = self._warm([items[at] for at in mine], spec)
            warm[spec] = dict(zip(mine, replies, strict=True))
        return [
            _records(item, wanted, colds[at], {s: warm[s][at] for s in (NAIVE, *wanted)})
            for at, (item, wanted) in enumerate(work)
        ]

    def close(self) -> None:
        """Close the engine."""
        self._asker.close()

    def _salt(self, case: Case, what: str) -> str:
        return f"certify/{self._run}/{self._turn}/{case.case_id}/{what}"

    def _cold(self, item: Item, what: str) -> ServedRequest:
        return ServedRequest(tokens=item.tokens, salt=self._salt(item.case, what), most=self._most)

    def _donate(self, items: Sequence[Item], what: str) -> None:
        self._asker.ask(
            [
                ServedRequest(tokens=tokens, salt=self._salt(item.case, what), most=1, capture=True)
                for item in items
                for tokens in item.donors
            ]
        )
        self._asker.settle()

    def _warm(self, items: Sequence[Item], spec: str) -> list[ServedReply]:
        what = ""
        if self._asker.forgets_prefixes:
            # A policy that declines an item leaves its whole prompt in the prefix cache.
            self._asker.forget_prefixes()
        else:
            what = spec
            self._donate(items, what)
        return self._asker.ask(
            [
                ServedRequest(
                    tokens=item.tokens,
                    salt=self._salt(item.case, what),
                    most=self._most,
                    reuse=True,
                    policy=spec,
                )
                for item in items
            ]
        )


def _records(
    item: Item, specs: Sequence[str], cold: ServedReply, replies: dict[str, ServedReply]
) -> list[Record]:
    reusable = replies[NAIVE].reused_tokens(NAIVE)
    if not reusable:
        return []  # nothing was confirmed: there is nothing to judge
    return [_record(item, spec, cold, replies[spec], reusable) for spec in specs]


def _record(item: Item, spec: str, cold: ServedReply, warm: ServedReply, reusable: int) -> Record:
    case = item.case
    answer, cold_answer = _answer(warm), _answer(cold)
    same = warm.tokens == cold.tokens
    away = compared(cold, warm)
    is_cold, reused = spec == "cold", min(warm.reused_tokens(spec), reusable)
    return Record(
        case_id=case.case_id,
        workload=case.workload,
        kind=case.kind,
        policy=spec,
        depth=case.depth,
        edits=case.edits,
        prompt_tokens=len(item.tokens),
        reusable_tokens=reusable,
        behind_edit_tokens=0,
        recomputed_tokens=reusable - reused if reused else 0,
        declined_tokens=0 if reused or is_cold else reusable,
        probe_tokens=0.0,
        answer=answer,
        cold_answer=cold_answer,
        expected=case.answer,
        right=_right(case, answer, same),
        cold_right=_cold_right(case, cold),
        same=same,
        leaked=states(answer, case.leaked),
        cold_leaked=states(cold_answer, case.leaked),
        f1=token_f1(answer, case.answer),
        rouge_l=rouge_l(answer, case.answer),
        kl=away.kl,
        kl_worst=away.kl_worst,
        top1=away.top1,
        nll=away.nll,
        cold_nll=away.cold_nll,
        cold_margin=round(margin(cold), 4),
    )


def _answer(reply: ServedReply) -> str:
    """What is said behind any reasoning; nothing, where reasoning took all the tokens."""
    _, ended, answer = reply.text.rpartition(REASONED)
    return "" if REASONING in answer and not ended else answer.strip()


def _cold_right(case: Case, cold: ServedReply) -> bool:
    return _right(case, _answer(cold), True)


def _right(case: Case, answer: str, same: bool) -> bool:
    """Whether the value is stated: models that talk say more than it. Prose has no right one."""
    return states(answer, (case.answer,)) if case.answer else same
