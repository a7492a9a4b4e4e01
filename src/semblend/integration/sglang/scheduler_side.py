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
from semblend.integration.scheduler.orders import LoadFailure
from semblend.integration.scheduler.request import Stage
from semblend.integration.scheduler.settlement import Settlements
from semblend.integration.sglang import namespaces
from semblend.integration.sglang.donor_queue import DonorQueue, Offer
from semblend.integration.sglang.hicache import HostTier
from semblend.integration.sglang.loading import DonorLostError, SpanLoader
from semblend.integration.sglang.log_lines import BackendLog, logger
from semblend.integration.sglang.options import BackendOptions
from semblend.integration.sglang.passes import RegionPasses
from semblend.integration.sglang.provider import DonorRecord, SemBlendProvider
from semblend.integration.sglang.request_state import (
    State,
    known_state,
    not_carried_out,
    released,
    state_of,
)
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
        host_tier: HostTier | None = None,
    ) -> None:
        """Build from parts; without loader and passes it only discovers."""
        self.host_tier = host_tier
        self.provider = provider
        self.log = log
        self.stats = stats
        self.settlements = Settlements(ledger=provider.pipeline.ledger, audit=log, stats=stats)
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
        if request.kv.holds_kv:
            return result
        namespace = self.provider.namespace_of(request.extra_key, request.cache_salt)
        state = state_of(request, self.settlements.accounts, namespace)
        state.account.exact_tokens = int(result.device_prefix_len)
        if state.arrival.refusal is not None:
            state.decline(DeclineReason.UNSUPPORTED, state.arrival.refusal)
            return result
        if not state.arrival.may_reuse:
            state.decline(DeclineReason.DISABLED, "the request says reuse: false")
            return result
        if state.stage is Stage.FAILED:
            return result
        if state.stage is Stage.LOADING:
            self._take_back(state)
        state.withdraw()  # it is asked anew
        if result.host_hit_length:  # HiCache has more of the prefix, and that is exact
            return result
        plan = self._plan(state, request, key)
        if not plan.executable or plan.end > len(key):
            if plan.reason is not None:
                state.decline(plan.reason, plan.detail)
            return result
        if not (self.loads and self.hook_seen):
            state.decline(DeclineReason.DISABLED, "nothing is loaded at present")
            return result
        first = state.reuse is None
        state.make_claim(plan)
        if first:
            self.log.advertised(state.request_id, plan)
        node = result.last_device_node
        return result._replace(
            last_host_node=node,
            best_match_node=node,
            host_hit_length=plan.end - plan.exact_tokens,
        )

    def _plan(self, state: State, request: Any, key: Any) -> Plan:
        """The request's plan, made once for one exact prefix; new donors may improve it."""
        row, made_for = state.handle, (len(key.token_ids), state.exact_tokens)
        known = state.plan_for(made_for)
        if known is not None and not self._replan(state, known):
            return known
        started = time.perf_counter()
        if len(row.tokens) != len(key.token_ids):
            row.tokens = as_token_array(key.token_ids)
        first = state.plan is None and not state.account.is_settled
        row.generation = self.provider.generation
        plan = self.provider.match(
            row.tokens,
            extra_key=request.extra_key,
            cache_salt=request.cache_salt,
            exact_tokens=state.exact_tokens,
            hole_budget=self._hole_budget,
        )
        state.account.claimed(plan)
        state.planned(plan, made_for)
        self.stats.time("lookup", time.perf_counter() - started)
        if first:
            self.log.looked_up(state.request_id, plan)
        return plan

    def _replan(self, state: State, plan: Plan) -> bool:
        """Whether a waiting request is planned again because donors came or went.

        A long queue is matched at every step, and donors come with every step: without a
        ration, planning would be quadratic in the queue.
        """
        if state.handle.generation == self.provider.generation:
            return False
        if plan.executable and all(map(self.provider.donor, plan.donor_ids)):
            return False
        if not self._replans_left:
            return False
        self._replans_left -= 1
        return True

    # -- loading ---------------------------------------------------------------------

    def has_offered(self, request: Any) -> bool:
        """Whether what the scheduler was told to load is ours."""
        state = known_state(request)
        return state is not None and state.stage is Stage.CLAIMED

    def loaded_by_the_tree(self, request: Any, tokens: int) -> None:
        """HiCache brings back an exact prefix of the request."""
        state = known_state(request)
        if state is not None:
            state.account.exact_tokens += tokens

    def load(self, params: Any) -> tuple[int, Any] | None:
        """(tokens, node) that were loaded: all that were offered or none; None is "ask again"."""
        request = params.req
        nothing = (0, request.last_node)
        state = known_state(request)
        plan = None if state is None else state.plan
        if state is None or plan is None or state.stage is not Stage.CLAIMED or not self.loads:
            return nothing
        if params.host_hit_length != plan.end - plan.exact_tokens:
            return nothing
        holes = pass_tokens(plan)
        if self._pending and sum(self._pending.values()) + holes > self._hole_budget:
            self.stats.count("waits")
            return None
        if self.host_tier is not None and self.host_tier.is_loading:
            if self.host_tier.may_wait(state.request_id):
                self.stats.count("waits")
                return None
            self._declined(state, DeclineReason.NO_CAPACITY, "HiCache loads all the time")
            return nothing
        try:
            return self._load(request, state, plan, holes)
        except DonorLostError as error:
            return self._lost(state, error, nothing)
        except CapacityError as error:
            self._declined(state, DeclineReason.NO_CAPACITY, str(error))
        except DonorError as error:
            self._declined(state, DeclineReason.DONOR_GONE, str(error))
        except Exception as error:
            logger.warning("SemBlend could not load for %s", request.rid, exc_info=True)
            self._note_failure()
            self.settlements.failed(
                state, LoadFailure.by(error), blocks=plan.end - plan.exact_tokens
            )
            state.failed()
        return nothing

    def _declined(self, state: State, reason: DeclineReason, detail: str) -> None:
        """A plan is not carried out, and nothing was loaded."""
        not_carried_out(state, self.log, reason, detail)
        state.failed()

    def _load(self, request: Any, state: State, plan: Plan, holes: int) -> tuple[int, Any] | None:
        if self._loader is None:
            return 0, request.last_node
        started = time.perf_counter()
        state.handle.load = self._loader.load(plan, state.handle.tokens)
        # From here on the request's K/V is approximate: never in the tree, never a donor.
        request.skip_radix_cache_insert = True
        state.admitted()
        state.tainted = True
        self._pending[state.request_id] = holes
        self.log.loaded(state.request_id, plan)
        self.stats.time("load", time.perf_counter() - started)
        return plan.end - plan.exact_tokens, request.last_node

    def _lost(
        self, state: State, error: DonorLostError, nothing: tuple[int, Any]
    ) -> tuple[int, Any] | None:
        for donor_id in error.donor_ids:
            self.provider.forget(donor_id)
        self.stats.count("donors_lost", len(error.donor_ids))
        state.handle.losses += 1
        if state.handle.losses <= _RETRIES:
            # Forgotten donors are not planned with again: other donors may do.
            self.stats.count("waits")
            released(state)
            return None
        self._declined(state, DeclineReason.DONOR_GONE, str(error))
        return nothing

    def _take_back(self, state: State) -> None:
        """A load whose request was not run after all: its slots go back."""
        self._pending.pop(state.request_id, None)
        if self._loader is not None and state.handle.load is not None:
            self._loader.give_back(state.handle.load.slots)
        released(state)

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
                if state is not None and state.stage is Stage.LOADING:
                    loaded[row] = (request, state)
                    self._pending.pop(state.request_id, None)
        if loaded and self._passes is not None:
            started = time.perf_counter()
            batch, failed = self._passes.complete(batch, loaded, self.settlements, self.log)
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
        if state is None or state.handle.donated or state.tainted:
            return
        if state.arrival.refusal is not None or state.arrival.wants_capture is False:
            return
        whole = self.provider.whole_pages(len(prompt))
        if not self._options.register_donors or not 0 < whole <= len(row):
            return
        state.handle.donated = self._donors.offer(
            Offer(
                tokens=prompt,
                request_id=state.request_id,
                extra_key=request.extra_key,
                cache_salt=request.cache_salt,
                last_slot=row[whole - 1].clone(),  # rows are used again
            )
        )
        if not state.handle.donated:
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
        if self.host_tier is not None:
            self.host_tier.forget(state.request_id)
        try:
            if request.finished():
                self.settlements.ended(state)
                state.ended()
                self._show()
                namespace = self.provider.namespace_of(request.extra_key, request.cache_salt)
                self.log.settled(
                    state.account.settlement,
                    namespace=namespaces.shown(namespace),
                    tenant=namespace.tenant,
                )
            else:
                released(state)
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
