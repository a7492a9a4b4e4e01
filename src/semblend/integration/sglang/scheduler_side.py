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

from semblend.core.errors import CapacityError
from semblend.core.outcomes import DeclineReason
from semblend.core.plan import Plan
from semblend.core.tokens import as_token_array
from semblend.integration.donor_queue import DonorQueue
from semblend.integration.gauges import pipeline_gauges
from semblend.integration.modes import CapturePolicy
from semblend.integration.prometheus import PrometheusStats
from semblend.integration.provider import SemBlendProvider
from semblend.integration.scheduler.admissions import Admissions
from semblend.integration.scheduler.request import Stage
from semblend.integration.scheduler.settlement import Settlements, beside
from semblend.integration.scheduler.setup import CaptureRules
from semblend.integration.sglang.hicache import HostTier
from semblend.integration.sglang.loading import SpanLoader
from semblend.integration.sglang.log_lines import ENGINE, BackendLog, logger
from semblend.integration.sglang.options import BackendOptions
from semblend.integration.sglang.passes import RegionPasses
from semblend.integration.sglang.request_state import State, known_state, released, state_of
from semblend.integration.sglang.tree_chains import Following
from semblend.integration.worker.host_ranks import MeetingRanks, RanksPartError
from semblend.planning.certificates import Standing

if TYPE_CHECKING:
    import torch

_WAITING = 256
"""Prompts that may be in line to become donors."""


class SchedulerSide:
    """Offers, loads and reports for one engine."""

    def __init__(
        self,
        *,
        options: BackendOptions,
        provider: SemBlendProvider,
        log: BackendLog,
        stats: PrometheusStats,
        loader: SpanLoader | None,
        passes: RegionPasses | None,
        hole_budget: int,
        standing: Standing,
        host_tier: HostTier,
        ranks: MeetingRanks,
    ) -> None:
        """Build from parts; without loader and passes it only discovers."""
        self._host_tier = host_tier
        self._ranks = ranks
        self.provider = provider
        self.log = log
        self.stats = stats
        self.settlements = Settlements(ledger=provider.pipeline.ledger, audit=log, stats=stats)
        self.admissions = Admissions(
            engine=ENGINE,
            provider=provider,
            settlements=self.settlements,
            audit=log,
            stats=stats,
            hole_budget=hole_budget,
            failures_before_off=options.failures_before_off,
            standing=options.mode.standing,
        )
        self.hook_seen = False
        """Whether the forward hook has run in this process: without it nothing is loaded."""
        rules = CaptureRules(
            policy=CapturePolicy.ALL if options.register_donors else CapturePolicy.NONE,
            queue=_WAITING,
            min_prompt_tokens=provider.pipeline.settings.min_prompt_tokens,
        )
        self._donors = DonorQueue(provider, engine=ENGINE, rules=rules, audit=log, stats=stats)
        self._options = options
        self._loader = loader
        self._passes = passes
        self._standing = standing
        self._show()

    @property
    def speaks(self) -> bool:
        """Whether this is the rank that speaks for all: each has the same donors."""
        return self._ranks.rank == 0

    @property
    def can_load(self) -> bool:
        """Whether this engine and mode load at all: fixed at start."""
        return self._loader is not None and self._passes is not None

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
        state = state_of(
            request,
            self.settlements.accounts,
            namespace,
            names_policy=self._options.mode.uncertified,
        )
        if state.stage is Stage.LOADING:
            self._take_back(state)
        if result.host_hit_length:  # HiCache has more of the prefix, and that is exact
            state.withdraw()
            state.account.exact_tokens = int(result.device_prefix_len)
            return result
        plan = self._claimed(state, key, int(result.device_prefix_len))
        if plan is None:
            return result
        node = result.last_device_node
        return result._replace(
            last_host_node=node,
            best_match_node=node,
            host_hit_length=plan.end - plan.exact_tokens,
        )

    def _claimed(self, state: State, key: Any, exact_tokens: int) -> Plan | None:
        """What all ranks would load; nothing where they do not mean the same."""
        if self._ranks.count > 1:
            self._donors.wait()  # or a rank would know of a donor before the others do
        with self._ranks.together():
            following = self._following(state, key, exact_tokens)
            plan = self.admissions.claim(
                state,
                key.token_ids,
                exact_tokens,
                most=len(key),
                may_load=self.can_load and self.hook_seen,
                continued_tokens=0 if following is None else following.end - following.start,
            )
            state.handle.following = None if plan is None else following
            meant = None if plan is None else (plan.copies, plan.holes, plan.end, plan.policy)
            if not self._ranks.agree(meant):
                state.withdraw()
                raise RanksPartError("the ranks' plans differ")
        return plan

    def _following(self, state: State, key: Any, exact_tokens: int) -> Following | None:
        """What of a conversation the request continues, if it is there."""
        chains = None if self._loader is None else self._loader.chains
        if chains is None or not len(chains):
            return None
        if len(state.handle.tokens) != len(key.token_ids):
            state.handle.tokens = as_token_array(key.token_ids)
        return chains.find(state, state.handle.tokens, exact_tokens, most=len(key))

    def _take_back(self, state: State) -> None:
        """A load whose request was not run after all: its slots go back."""
        self.admissions.no_longer_waits(state)
        if self._loader is not None and state.handle.load is not None:
            self._loader.give_back(state.handle.load.slots)
        released(state)

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
        request, loader = params.req, self._loader
        state = known_state(request)
        plan = None if state is None else state.plan
        if state is None or plan is None or loader is None:
            return 0, request.last_node
        if params.host_hit_length != plan.end - plan.exact_tokens:
            return 0, request.last_node

        if self._host_tier.is_loading and self._host_tier.may_wait(state.request_id):
            self.stats.count("waits")
            return None

        def carry_out(plan: Plan) -> None:
            if self._host_tier.is_loading:
                raise CapacityError("HiCache loads all the time")
            following = state.handle.following
            state.handle.load = loader.load(plan, state.handle.tokens, following)
            request.skip_radix_cache_insert = True
            state.continuation = None if following is None else following.continuation

        loaded = self.admissions.load(state, carry_out)
        return None if loaded is None else (loaded, request.last_node)

    # -- the forward -----------------------------------------------------------------

    def before_forward(self, batch: Any) -> Any:
        """The batch to run, with every region in place. Never raises."""
        self.hook_seen = True
        self.admissions.next_step()
        if batch is None or not batch.forward_mode.is_extend():
            return batch
        loaded = {}
        if self.admissions.awaits_forward:
            for row, request in enumerate(batch.reqs):
                state = known_state(request)
                if state is not None and state.stage is Stage.LOADING:
                    loaded[row] = (request, state)
                    self.admissions.no_longer_waits(state)
        if loaded and self._passes is not None:
            started = time.perf_counter()
            batch, failed = self._passes.complete(batch, loaded, self.settlements, self.log)
            self.admissions.ran(well=not failed)
            self.stats.time("nested", time.perf_counter() - started)
        if self._options.report:
            self._report(batch)
        return batch

    def _report(self, batch: Any) -> None:
        certified = self._standing.certificate is not None
        for request in batch.reqs:
            state = known_state(request)
            if state is not None and request.customized_info is None:
                request.customized_info = {"semblend": [state.report(certified=certified)]}

    # -- the rest of a request's life ------------------------------------------------

    def checkpointed(self, request: Any, row: torch.Tensor) -> None:
        """The tree holds the request's K/V in these slots; its prompt becomes a donor."""
        with beside("keep a prompt"):
            self._donate(request, row)

    def _donate(self, request: Any, row: torch.Tensor) -> None:
        state = known_state(request)
        prompt = request.origin_input_ids
        whole = self.provider.whole_pages(len(prompt))
        if state is None or not 0 < whole <= len(row):
            return
        keys = {"extra_key": request.extra_key, "cache_salt": request.cache_salt}
        state.handle.donated |= self._donors.keep(state, prompt, last_slot=row[whole - 1], **keys)
        # A shorter answer than a span has at least could never be found.
        shortest = self.provider.pipeline.settings.min_span_tokens
        if request.finished() and len(row) - len(prompt) >= shortest:
            said = [*prompt, *request.output_ids][: len(row)]
            self._donors.keep_answer(state, said, last_slot=row[len(said) - 1], **keys)

    def freed(self, slots: Sequence[torch.Tensor]) -> None:
        """The tree has let go of slots, and with them of donors."""
        self._donors.freed(slots)

    def wait_for_donors(self) -> None:
        """Until all that the tree has taken and let go of is known. For tests and benchmarks."""
        self._donors.wait()

    def ending(self, request: Any) -> None:
        """The request's row is about to be freed; if it has ended, its conversation may go on."""
        state = known_state(request)
        if state is None or self._loader is None or self._loader.chains is None:
            return
        if request.finished():
            with beside("keep a conversation"):
                self._loader.chains.keep(request, state)

    def released(self, request: Any) -> None:
        """The request's slots were given back: it has ended, or was retracted."""
        state = known_state(request)
        if state is None:
            return
        with beside("settle a request"):
            self.admissions.no_longer_waits(state)
            self._host_tier.forget(state.request_id)
            if request.finished():
                self.admissions.ended(state)
                self._show()
            else:
                released(state)

    def _show(self) -> None:
        """Bring the gauges up to date."""
        if self.stats.wants_gauges:
            self.stats.gauges(
                pipeline_gauges(
                    self.provider.pipeline,
                    self._standing,
                    loading=self.can_load and self.admissions.works,
                    captures_waiting=self._donors.waiting,
                )
            )

    def flushed(self) -> None:
        """The tree was emptied, and every donor with it."""
        self._donors.clear()
        self.provider.clear()
        self.admissions.forget()
        if self._loader is not None and self._loader.chains is not None:
            self._loader.chains.clear()
