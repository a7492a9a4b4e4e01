"""The backend's decisions, called by the radix cache from the scheduler's loop.

In the order of a request's life:

- `offered` (match_prefix, many times): a plan, remembered until donors or the exact prefix
  change, told to the scheduler as tokens that can be loaded;
- `load` (init_load_back, once): donors found again, slots taken, spans copied;
- `before_forward` (the forward hook): holes computed, or the region computed exactly;
- `checkpointed`: what was computed exactly becomes a donor; `freed`: until the tree drops it;
- `released`: retracted, aborted or finished.

No call raises into the scheduler, and none embeds, waits or reads files.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from semblend.core.errors import CapacityError, DonorError
from semblend.core.outcomes import DeclineReason
from semblend.core.plan import Plan
from semblend.core.tokens import as_token_array
from semblend.integration.gauges import pipeline_gauges
from semblend.integration.probing import pass_tokens
from semblend.integration.sglang import namespaces
from semblend.integration.sglang.donor_queue import DonorQueue, Offer
from semblend.integration.sglang.loading import DonorLostError, SpanLoader
from semblend.integration.sglang.log_lines import BackendLog, logger
from semblend.integration.sglang.options import BackendOptions
from semblend.integration.sglang.passes import RegionPasses
from semblend.integration.sglang.provider import DonorRecord, SemBlendProvider
from semblend.integration.sglang.request_state import (
    Progress,
    RequestState,
    known_state,
    state_of,
)
from semblend.integration.sglang.settlement import Settlements
from semblend.integration.sglang.stats import BackendStats
from semblend.planning.certificates import Standing

if TYPE_CHECKING:
    import torch

_REPLANS = 8
"""Waiting requests planned again between two forwards because the set of donors changed."""
_RETRIES = 2
"""Times a request is planned again because donors were gone, before it is computed cold."""


class SchedulerSide:
    """Offers, loads and reports for one engine."""

    def __init__(
        self,
        *,
        options: BackendOptions,
        provider: SemBlendProvider,
        log: BackendLog,
        stats: BackendStats,
        loader: SpanLoader | None,
        passes: RegionPasses | None,
        hole_budget: int,
        certified: bool,
        standing: Standing | None = None,
    ) -> None:
        """Build from parts; without loader and passes it only discovers."""
        self.provider = provider
        self.log = log
        self.stats = stats
        self.settlements = Settlements(ledger=provider.ledger, log=log, stats=stats)
        self.hook_seen = False
        """Whether the forward hook has run in this process: without it nothing is loaded."""
        self._donors = DonorQueue(provider, self._registered, self._evicted)
        self._options = options
        self._loader = loader
        self._passes = passes
        self._hole_budget = hole_budget
        self._pending: dict[str, int] = {}
        """Tokens of nested passes for requests that are loaded and wait for this step's forward."""
        self._failures = 0
        self._replans_left = _REPLANS
        self._certified = certified
        self._standing = Standing() if standing is None else standing
        self._show()

    @property
    def can_load(self) -> bool:
        """Whether this engine and mode load at all: fixed at start."""
        return self._loader is not None and self._passes is not None

    @property
    def loads(self) -> bool:
        """Whether anything is loaded at present."""
        return self.can_load and self._failures < self._options.failures_before_off

    # -- matching --------------------------------------------------------------------

    def offered(self, request: Any, key: Any, result: Any) -> Any:
        """The tree's match, with what can be loaded behind it."""
        try:
            return self._offered(request, key, result)
        except Exception as error:
            logger.warning("SemBlend could not plan for %s: %s", request.rid, error, exc_info=True)
            state = known_state(request)
            if state is not None:
                state.account.decline(DeclineReason.INTERNAL_ERROR, type(error).__name__)
            return result

    def _offered(self, request: Any, key: Any, result: Any) -> Any:
        if result.host_hit_length or request.kv.holds_kv:
            return result
        state = state_of(request, self.settlements.accounts)
        state.account.exact_tokens = int(result.device_prefix_len)
        if state.refusal is not None:
            state.account.decline(DeclineReason.UNSUPPORTED, state.refusal)
            return result
        if not state.may_reuse:
            state.account.decline(DeclineReason.DISABLED, "the request says reuse: false")
            return result
        if state.progress is Progress.FAILED:
            return result
        if state.progress is Progress.LOADED:
            self._take_back(state)
        plan = self._plan(state, request, key)
        if not plan.executable or plan.end > len(key):
            if plan.reason is not None:
                state.account.decline(plan.reason, plan.detail)
            return result
        if not (self.loads and self.hook_seen):
            state.account.decline(DeclineReason.DISABLED, "nothing is loaded at present")
            return result
        if state.progress is Progress.NONE:
            state.progress = Progress.OFFERED
            self.log.advertised(state.request_id, plan)
        node = result.last_device_node
        return result._replace(
            last_host_node=node,
            best_match_node=node,
            host_hit_length=plan.end - plan.exact_tokens,
        )

    def _plan(self, state: RequestState, request: Any, key: Any) -> Plan:
        """The request's plan, made once for one exact prefix; new donors may improve it."""
        made_for = (len(key.token_ids), state.account.exact_tokens)
        if state.plan is not None and state.planned_for == made_for and not self._replan(state):
            return state.plan
        started = time.perf_counter()
        if state.tokens is None or len(state.tokens) != len(key.token_ids):
            state.tokens = as_token_array(key.token_ids)
        first = state.planned_for is None and not state.account.is_settled
        state.generation = self.provider.generation
        state.plan = self.provider.match(
            state.tokens,
            request_id=None if state.account.is_settled else state.request_id,
            extra_key=request.extra_key,
            cache_salt=request.cache_salt,
            exact_tokens=state.account.exact_tokens,
            hole_budget=self._hole_budget,
        )
        state.planned_for = made_for
        self.stats.time("lookup", time.perf_counter() - started)
        if first:
            self.log.looked_up(state.request_id, state.plan)
        return state.plan

    def _replan(self, state: RequestState) -> bool:
        """Whether a waiting request is planned again because donors came or went.

        A long queue is matched at every step, and donors come with every step: without a
        ration, planning would be quadratic in the queue.
        """
        if state.plan is None or state.generation == self.provider.generation:
            return False
        if state.plan.executable and all(map(self.provider.donor, state.plan.donor_ids)):
            return False
        if not self._replans_left:
            return False
        self._replans_left -= 1
        return True

    # -- loading ---------------------------------------------------------------------

    def load(self, params: Any) -> tuple[int, Any] | None:
        """(tokens, node) that were loaded: all that were offered or none; None is "ask again"."""
        request = params.req
        nothing = (0, request.last_node)
        state = known_state(request)
        plan = None if state is None else state.plan
        if state is None or plan is None or not plan.executable or not self.loads:
            return nothing
        if params.host_hit_length != plan.end - plan.exact_tokens:
            return nothing
        holes = pass_tokens(plan)
        if self._pending and sum(self._pending.values()) + holes > self._hole_budget:
            self.stats.count("waits")
            return None
        try:
            return self._load(request, state, plan, holes)
        except DonorLostError as error:
            return self._lost(state, error, nothing)
        except CapacityError as error:
            self.settlements.declined(state, DeclineReason.NO_CAPACITY, str(error))
        except DonorError as error:
            self.settlements.declined(state, DeclineReason.DONOR_GONE, str(error))
        except Exception as error:
            logger.warning("SemBlend could not load for %s", request.rid, exc_info=True)
            self._note_failure()
            self.settlements.failed(
                state, DeclineReason.MATERIALISATION_FAILED, f"{type(error).__name__}: {error}"
            )
        state.progress = Progress.FAILED
        return nothing

    def _load(
        self, request: Any, state: RequestState, plan: Plan, holes: int
    ) -> tuple[int, Any] | None:
        if self._loader is None or state.tokens is None:
            return 0, request.last_node
        started = time.perf_counter()
        state.load = self._loader.load(plan, state.tokens)
        # From here on the request's K/V is approximate: never in the tree, never a donor.
        request.skip_radix_cache_insert = True
        state.tainted = True
        state.progress = Progress.LOADED
        self._pending[state.request_id] = holes
        self.log.loaded(state.request_id, plan)
        self.stats.time("load", time.perf_counter() - started)
        return plan.end - plan.exact_tokens, request.last_node

    def _lost(
        self, state: RequestState, error: DonorLostError, nothing: tuple[int, Any]
    ) -> tuple[int, Any] | None:
        for donor_id in error.donor_ids:
            self.provider.forget(donor_id)
        self.stats.count("donors_lost", len(error.donor_ids))
        state.losses += 1
        if state.losses <= _RETRIES:
            # Forgotten donors are not planned with again: other donors may do.
            self.stats.count("waits")
            state.released()
            return None
        self.settlements.declined(state, DeclineReason.DONOR_GONE, str(error))
        state.progress = Progress.FAILED
        return nothing

    def _take_back(self, state: RequestState) -> None:
        """A load whose request was not run after all: its slots go back."""
        self._pending.pop(state.request_id, None)
        if self._loader is not None and state.load is not None:
            self._loader.give_back(state.load.slots)
        state.released()

    def _note_failure(self) -> None:
        self._failures += 1
        if self._failures == self._options.failures_before_off:
            logger.error(
                "SemBlend failed %d times in a row; nothing is loaded any more", self._failures
            )

    # -- the forward -----------------------------------------------------------------

    def before_forward(self, batch: Any) -> Any:
        """The batch to run, with every region in place. Never raises."""
        self.hook_seen = True
        self._replans_left = _REPLANS
        if batch is None or not batch.forward_mode.is_extend():
            return batch
        loaded = {}
        if self._pending:
            for row, request in enumerate(batch.reqs):
                state = known_state(request)
                if state is not None and state.progress is Progress.LOADED:
                    loaded[row] = (request, state)
                    self._pending.pop(state.request_id, None)
        if loaded and self._passes is not None:
            started = time.perf_counter()
            batch, failed = self._passes.complete(batch, loaded, self.settlements)
            if failed:
                self._note_failure()
            else:
                self._failures = 0
            self.stats.time("nested", time.perf_counter() - started)
        if self._options.report:
            self._report(batch)
        return batch

    def _report(self, batch: Any) -> None:
        for request in batch.reqs:
            state = known_state(request)
            if state is not None and request.customized_info is None:
                request.customized_info = {"semblend": [state.report(certified=self._certified)]}

    # -- the rest of a request's life ------------------------------------------------

    def checkpointed(self, request: Any, row: torch.Tensor) -> None:
        """The tree holds the request's K/V in these slots; its prompt becomes a donor."""
        try:
            self._donate(request, row)
        except Exception as error:
            logger.warning("SemBlend did not keep %s: %s", request.rid, error, exc_info=True)

    def _donate(self, request: Any, row: torch.Tensor) -> None:
        state = known_state(request)
        prompt = request.origin_input_ids
        if state is None or state.donated or state.tainted or state.refusal is not None:
            return
        whole = self.provider.whole_pages(len(prompt))
        if not self._options.register_donors or not state.may_donate or not 0 < whole <= len(row):
            return
        state.donated = self._donors.offer(
            Offer(
                tokens=prompt,
                request_id=state.request_id,
                extra_key=request.extra_key,
                cache_salt=request.cache_salt,
                last_slot=row[whole - 1].clone(),  # rows are used again
            )
        )
        if not state.donated:
            self.stats.count("donors_skipped")

    def freed(self, slots: Sequence[torch.Tensor]) -> None:
        """The tree has let go of slots, and with them of donors."""
        self._donors.freed(slots)

    def _registered(self, offer: Offer, record: DonorRecord) -> None:
        """On the donors' thread: a prompt may be found from now on."""
        self.stats.count("donors_registered")
        namespace = self.provider.namespace_of(offer.extra_key, offer.cache_salt)
        self.log.donor_registered(
            offer.request_id,
            donor_id=record.donor_id,
            namespace=namespaces.shown(namespace),
            tokens=len(record.tokens),
        )

    def _evicted(self, donor_id: str) -> None:
        """On the donors' thread: the tree no longer holds a donor."""
        self.stats.count("donors_evicted")

    def wait_for_donors(self) -> None:
        """Until all that the tree has taken and let go of is known. For tests and benchmarks."""
        self._donors.wait()

    def released(self, request: Any) -> None:
        """The request's slots were given back: it has ended, or was retracted."""
        state = known_state(request)
        if state is None:
            return
        self._pending.pop(state.request_id, None)
        try:
            if request.finished():
                self.settlements.ended(state)
                self._show()
                namespace = self.provider.namespace_of(request.extra_key, request.cache_salt)
                self.log.audit.settled(
                    state.account.settlement,
                    namespace=namespaces.shown(namespace),
                    tenant=namespace.tenant,
                )
            else:
                state.released()
        except Exception as error:
            logger.warning("SemBlend could not settle %s: %s", request.rid, error, exc_info=True)

    def _show(self) -> None:
        """Bring the gauges up to date."""
        if self.stats.wants_gauges:
            self.stats.gauges(
                pipeline_gauges(
                    self.provider.pipeline,
                    self._standing,
                    loading=self.loads,
                    captures_waiting=self._donors.waiting,
                )
            )

    def flushed(self) -> None:
        """The tree was emptied, and every donor with it."""
        self._donors.clear()
        self.provider.clear()
        self._pending.clear()
