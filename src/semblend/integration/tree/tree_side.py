"""What is decided for an engine that keeps donors in its own tree and loads when it admits.

In the order of a request's life; an engine's own side finds the request's state and calls:

- `claimed`, many times: a plan, remembered until donors or the exact prefix change;
- `place`, once, when the request is admitted: donors found again, slots taken, spans copied;
- `complete`, before the engine's forward: holes computed, or the region computed exactly;
- `donate`: what was computed exactly becomes a donor; `freed`: until the tree drops it;
- `keep_chain` and `let_go`: it has ended; `take_back`, `let_go`: it was not run, or retracted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from semblend.core.errors import CapacityError
from semblend.core.plan import Plan
from semblend.core.tokens import TokenIds, as_token_array
from semblend.integration.auditing.audit_stream import AuditStream
from semblend.integration.donor_queue import DonorQueue
from semblend.integration.gauges import pipeline_gauges
from semblend.integration.modes import Mode
from semblend.integration.prometheus import PrometheusStats
from semblend.integration.provider import SemBlendProvider
from semblend.integration.scheduler.admissions import Admissions
from semblend.integration.scheduler.request import Stage
from semblend.integration.scheduler.settlement import Settlements
from semblend.integration.scheduler.setup import CaptureRules
from semblend.integration.tree.admitted import State, released
from semblend.integration.tree.region_passes import RegionPasses
from semblend.integration.tree.slot_tree import EndedRow
from semblend.integration.tree.tree_chains import Following
from semblend.integration.tree.tree_loader import TreeLoader
from semblend.integration.worker.host_ranks import MeetingRanks, RanksPartError
from semblend.planning.certificates import Standing

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TreeParts:
    """What a side is made of."""

    engine: str
    """Its name in records."""
    mode: Mode
    provider: SemBlendProvider
    audit: AuditStream
    placed: Callable[[str, Plan], None]
    """Told of every load that the account confirms."""
    stats: PrometheusStats
    loader: TreeLoader | None
    passes: RegionPasses | None
    """Without loader and passes it only discovers."""
    hole_budget: int
    failures_before_off: int
    capture: CaptureRules
    standing: Standing
    ranks: MeetingRanks


class TreeSide:
    """Decides for one engine, on its scheduler's thread."""

    def __init__(self, parts: TreeParts) -> None:
        provider, audit, stats = parts.provider, parts.audit, parts.stats
        self.provider, self.stats = provider, stats
        self.settlements = Settlements(ledger=provider.pipeline.ledger, audit=audit, stats=stats)
        self.admissions = Admissions(
            engine=parts.engine,
            provider=provider,
            settlements=self.settlements,
            audit=audit,
            stats=stats,
            hole_budget=parts.hole_budget,
            failures_before_off=parts.failures_before_off,
            standing=parts.mode.standing,
        )
        self.hook_seen = False
        """Whether the engine's forward was seen to ask for `complete`: else nothing is loaded."""
        self._donors = DonorQueue(
            provider, engine=parts.engine, rules=parts.capture, audit=audit, stats=stats
        )
        self._parts = parts
        self._loader, self._passes, self._ranks = parts.loader, parts.passes, parts.ranks
        self._show()

    @property
    def speaks(self) -> bool:
        """Whether this is the rank that speaks for all: each has the same donors."""
        return self._ranks.rank == 0

    @property
    def can_load(self) -> bool:
        """Whether this engine and mode load at all: fixed at start."""
        return self._loader is not None and self._passes is not None

    # -- a request that waits ----------------------------------------------------------

    def claimed(
        self, state: State, tokens: TokenIds, exact_tokens: int, *, most: int
    ) -> Plan | None:
        """What all ranks would load behind the exact prefix; `most` tokens may be present.

        Raises
        ------
        RanksPartError
            If they do not mean the same.
        """
        if self._ranks.count > 1:
            self._donors.wait()  # or a rank would know of a donor before the others do
        with self._ranks.together():
            following = self._following(state, tokens, exact_tokens, most)
            plan = self.admissions.claim(
                state,
                tokens,
                exact_tokens,
                most=most,
                may_load=self.can_load and self.hook_seen,
                continued_tokens=0 if following is None else following.end - following.start,
            )
            state.handle.following = None if plan is None else following
            meant = None if plan is None else (plan.copies, plan.holes, plan.end, plan.policy)
            if not self._ranks.agree(meant):
                state.withdraw()
                raise RanksPartError("the ranks' plans differ")
        return plan

    def _following(
        self, state: State, tokens: TokenIds, exact_tokens: int, most: int
    ) -> Following | None:
        """What of a conversation the request continues, if it is there."""
        chains = None if self._loader is None else self._loader.chains
        if chains is None or not len(chains):
            return None
        if len(state.handle.tokens) != len(tokens):
            state.handle.tokens = as_token_array(tokens)
        return chains.find(state, state.handle.tokens, exact_tokens, most=most)

    def take_back(self, state: State) -> None:
        """A load whose request was not run after all: its slots go back."""
        self.admissions.no_longer_waits(state)
        if self._loader is not None and state.handle.load is not None:
            self._loader.give_back(state.handle.load.slots)
        released(state)

    # -- its load ----------------------------------------------------------------------

    def place(self, state: State, plan: Plan) -> None:
        """Load a plan into slots of the request's own, or raise. For `Admissions.load`."""
        if self._loader is None:
            raise CapacityError("nothing is loaded here")
        following = state.handle.following
        state.handle.load = self._loader.load(plan, state.handle.tokens, following)
        state.continuation = None if following is None else following.continuation

    def complete(self, batch: Any, rows: Iterable[tuple[Any, State | None]]) -> Any:
        """The batch to run, with every region of its rows in place. Never raises."""
        loaded = {}
        if self.admissions.awaits_forward:
            for row, (request, state) in enumerate(rows):
                if state is not None and state.stage is Stage.LOADING:
                    loaded[row] = (request, state)
                    self.admissions.no_longer_waits(state)
        if loaded and self._passes is not None:
            started = time.perf_counter()
            batch, failed = self._passes.complete(
                batch, loaded, self.settlements, self._parts.placed
            )
            self.admissions.ran(well=not failed)
            self.stats.time("nested", time.perf_counter() - started)
        return batch

    # -- what becomes of its K/V -------------------------------------------------------

    def donate(
        self,
        state: State,
        prompt: Sequence[int],
        outputs: Sequence[int] | None,
        row: torch.Tensor,
        **keys: str | None,
    ) -> None:
        """The tree holds a request's K/V in these slots, under these keys; it becomes a donor.

        `outputs` are its whole answer, once there is one.
        """
        whole = self.provider.whole_pages(len(prompt))
        if not 0 < whole <= len(row):
            return
        state.handle.donated |= self._donors.keep(state, prompt, last_slot=row[whole - 1], **keys)
        # A shorter answer than a span has at least could never be found.
        shortest = self.provider.pipeline.settings.min_span_tokens
        if outputs is not None and len(row) - len(prompt) >= shortest:
            said = [*prompt, *outputs][: len(row)]
            self._donors.keep_answer(state, said, last_slot=row[len(said) - 1], **keys)

    def freed(self, slots: Sequence[torch.Tensor]) -> None:
        """The tree has let go of slots, and with them of donors."""
        self._donors.freed(slots)

    def wait_for_donors(self) -> None:
        """Until all that the tree has taken and let go of is known. For tests and benchmarks."""
        self._donors.wait()

    def keep_chain(self, state: State, row: EndedRow) -> None:
        """It has ended with an answer, and its row is about to be freed: it may be continued."""
        if self._loader is not None and self._loader.chains is not None:
            self._loader.chains.keep(state, row)

    def let_go(self, state: State, *, ended: bool) -> None:
        """Its slots were given back: it has ended, or was retracted."""
        self.admissions.no_longer_waits(state)
        if ended:
            self.admissions.ended(state)
            self._show()
        else:
            released(state)

    def flushed(self) -> None:
        """The tree was emptied, and every donor with it."""
        self._donors.clear()
        self.provider.clear()
        self.admissions.forget()
        if self._loader is not None and self._loader.chains is not None:
            self._loader.chains.clear()

    def _show(self) -> None:
        """Bring the gauges up to date."""
        if self.stats.wants_gauges:
            self.stats.gauges(
                pipeline_gauges(
                    self.provider.pipeline,
                    self._parts.standing,
                    loading=self.can_load and self.admissions.works,
                    captures_waiting=self._donors.waiting,
                )
            )
