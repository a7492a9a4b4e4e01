"""Offline runs: exact-block and planner metrics of a manifest, without an engine.

By default a planner knows only an item's own donors, which is what the item tests.
With `shared_donors` the most recent donors of earlier items stay registered too, for
both the planner and the exact cache, as they would in a server. Negative controls
always get a separate planner: another item's donor may contain their very document,
and finding it would not be a false claim.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from sembench.blocks import PlanBlocks, TokenArray, block_strip, exact_block_mask, plan_blocks
from sembench.errors import PlannerError, UsageError
from sembench.manifests.figures import TokenisedItem, tokenise
from sembench.metrics import exact_fields, plan_fields
from sembench.model import ManifestItem
from sembench.planners import Planner, PlannerDonor, PlannerRequest
from sembench.results import RequestRow
from sembench.tokenizers import Tokenizer

ENGINE = "offline"
_EXPECTED = (
    ("expected_exact", bool),
    ("expected_semantic", bool),
    ("expected_no_fact_leak", bool),
    ("expected_verifier_accept", bool),
    ("expected_supplied_tokens", int),
    ("expected_span_target_start", int),
    ("traffic_class", str),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineRun:
    """How to measure items. `make_planner` is called once, or twice with shared donors."""

    tokenizer: Tokenizer
    block_size: int
    make_planner: Callable[[], Planner] | None = None
    shared_donors: int = 0

    def __post_init__(self) -> None:
        if self.block_size < 1:
            raise UsageError(f"--block-size: expected at least 1, got {self.block_size}")
        if self.shared_donors < 0:
            raise UsageError(f"--shared-donors: expected 0 or more, got {self.shared_donors}")

    def rows(self, items: Iterable[ManifestItem]) -> Iterator[RequestRow]:
        """Yield one row per item, in order."""
        planner = self.make_planner() if self.make_planner else None
        alone = planner
        if self.shared_donors and self.make_planner:
            alone = self.make_planner()
        window = _Donors(self.shared_donors)
        own = _Donors(0)
        for item in items:
            tokens = tokenise(item, self.tokenizer)
            if item.negative_control:
                yield self._row(tokens, alone, own)
            else:
                yield self._row(tokens, planner, window)

    def _row(self, tokens: TokenisedItem, planner: Planner | None, known: _Donors) -> RequestRow:
        item = tokens.item
        texts = {donor.donor_id: donor.text for donor in item.donor_prompts}
        measured: dict[str, Any] = {}
        plan: PlanBlocks | None = None
        known.add(tokens.donors)
        exact = exact_block_mask(tokens.recipient, known.tokens.values(), self.block_size)
        if planner is not None:
            try:
                plan, measured = self._plan(tokens, texts, planner, known)
                measured |= plan_fields(exact, plan, self.block_size)
            except Exception as error:
                # A planner that fails has planned nothing; the row records the reason.
                measured = {"error": f"{type(error).__name__}: {error}"}
        for donor_id in known.drop_old():
            if planner is not None:
                _forget(planner, donor_id)
        return RequestRow(
            **item_fields(item),
            arm="single",
            donor_tokens=sum(map(len, tokens.donors.values())),
            donor_count=len(tokens.donors),
            **exact_fields(len(tokens.recipient), exact, self.block_size),
            block_strip=block_strip(exact, plan),
            **measured,
        )

    def _plan(
        self, tokens: TokenisedItem, texts: dict[str, str], planner: Planner, known: _Donors
    ) -> tuple[PlanBlocks, dict[str, Any]]:
        item = tokens.item
        for donor_id, donor in tokens.donors.items():
            planner.register(PlannerDonor(donor_id=donor_id, tokens=donor, text=texts[donor_id]))
        request = PlannerRequest(
            request_id=item.item_id, tokens=tokens.recipient, text=item.recipient_prompt
        )
        started = time.perf_counter()
        spans = list(planner.plan(request))
        plan_ms = (time.perf_counter() - started) * 1e3
        plan = plan_blocks(tokens.recipient, known.tokens, spans, self.block_size)
        return plan, {
            "planned_donor_ids": tuple(dict.fromkeys(span.donor_id for span in spans)),
            "planned_spans": len(spans),
            "plan_ms": plan_ms,
        }


def _forget(planner: Planner, donor_id: str) -> None:
    try:
        planner.forget(donor_id)
    except Exception as error:
        # Later items would find a donor that was not forgotten, so every figure after this is
        # wrong.
        raise PlannerError(f"the planner cannot forget donor {donor_id}: {error}") from error


def item_fields(item: ManifestItem) -> dict[str, Any]:
    """Row fields that come from the manifest alone; live runs use them too."""
    expected = {
        name: item.metadata[name]
        for name, kind in _EXPECTED
        if isinstance(item.metadata.get(name), kind)
    }
    return {
        "item_id": item.item_id,
        "dataset": item.dataset,
        "source_id": item.source_id,
        "transform": item.transform,
        "negative_control": item.negative_control,
        **expected,
    }


class _Donors:
    """The donors known now: the current item's and the last `kept` earlier ones."""

    def __init__(self, kept: int) -> None:
        self.tokens: dict[str, TokenArray] = {}
        self._kept = kept
        self._order: deque[str] = deque()

    def add(self, donors: dict[str, TokenArray]) -> None:
        repeated = self.tokens.keys() & donors.keys()
        if repeated:
            raise PlannerError(f"donor id {min(repeated)!r} occurs in two items")
        self.tokens.update(donors)
        self._order.extend(donors)

    def drop_old(self) -> list[str]:
        """Drop donors beyond the limit, oldest first, and return their ids."""
        dropped = []
        while len(self._order) > self._kept:
            dropped.append(self._order.popleft())
            del self.tokens[dropped[-1]]
        return dropped
