"""The shared side of engines with a tree, as the radix cache calls it from the scheduler's loop.

In the order of a request's life:

- `offered` (match_prefix, many times): what is claimed, told to the scheduler as tokens that can
  be loaded;
- `load` (init_load_back, once): spans copied into slots of the request's own;
- `before_forward` (the forward hook): holes computed, or the region computed exactly;
- `checkpointed`: what was computed exactly becomes a donor; `freed`: until the tree drops it;
- `ending`, `released`: retracted, aborted or finished.

No call raises into the scheduler, and none embeds, waits or reads files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from semblend.core.errors import CapacityError
from semblend.core.outcomes import DeclineReason
from semblend.core.plan import Plan
from semblend.integration.scheduler.request import Stage
from semblend.integration.scheduler.settlement import beside
from semblend.integration.sglang.hicache import HostTier
from semblend.integration.sglang.log_lines import logger
from semblend.integration.sglang.options import BackendOptions
from semblend.integration.sglang.request_state import known_state, state_of
from semblend.integration.sglang.tree_port import EndedRequest, has_answered
from semblend.integration.tree.tree_side import TreeParts, TreeSide

if TYPE_CHECKING:
    import torch


class SchedulerSide(TreeSide):
    """Offers, loads and reports for one engine."""

    def __init__(self, parts: TreeParts, *, options: BackendOptions, cache: Any) -> None:
        """`cache` is the radix cache that calls."""
        super().__init__(parts)
        self._options = options
        self._cache = cache
        self._host_tier = HostTier(cache)
        self._certified = parts.standing.certificate is not None

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
            self.take_back(state)
        exact = int(result.device_prefix_len)
        if result.host_hit_length:  # HiCache has more of the prefix, and that is exact
            state.withdraw()
            state.account.exact_tokens = exact
            return result
        plan = self.claimed(state, key.token_ids, exact, most=len(key))
        if plan is None:
            return result
        node = result.last_device_node
        return result._replace(
            last_host_node=node,
            best_match_node=node,
            host_hit_length=plan.end - plan.exact_tokens,
        )

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
        state = known_state(request)
        plan = None if state is None else state.plan
        if state is None or plan is None or not self.can_load:
            return 0, request.last_node
        if params.host_hit_length != plan.end - plan.exact_tokens:
            return 0, request.last_node

        if self._host_tier.is_loading and self._host_tier.may_wait(state.request_id):
            self.stats.count("waits")
            return None

        def carry_out(plan: Plan) -> None:
            if self._host_tier.is_loading:
                raise CapacityError("HiCache loads all the time")
            self.place(state, plan)
            request.skip_radix_cache_insert = True

        loaded = self.admissions.load(state, carry_out)
        return None if loaded is None else (loaded, request.last_node)

    # -- the forward -----------------------------------------------------------------

    def before_forward(self, batch: Any) -> Any:
        """The batch to run, with every region in place. Never raises."""
        self.hook_seen = True
        self.admissions.next_step()
        if batch is None or not batch.forward_mode.is_extend():
            return batch
        batch = self.complete(batch, ((each, known_state(each)) for each in batch.reqs))
        if self._options.report:
            self._report(batch)
        return batch

    def _report(self, batch: Any) -> None:
        for request in batch.reqs:
            state = known_state(request)
            if state is not None and request.customized_info is None:
                said = state.report(certified=self._certified)
                request.customized_info = {"semblend": [said]}

    # -- the rest of a request's life ------------------------------------------------

    def checkpointed(self, request: Any, row: torch.Tensor) -> None:
        """The tree holds the request's K/V in these slots; its prompt becomes a donor."""
        state = known_state(request)
        if state is None:
            return
        with beside("keep a prompt"):
            self.donate(
                state,
                request.origin_input_ids,
                request.output_ids if request.finished() else None,
                row,
                extra_key=request.extra_key,
                cache_salt=request.cache_salt,
            )

    def ending(self, request: Any) -> None:
        """The request's row is about to be freed; if it has ended, its conversation may go on."""
        state = known_state(request)
        if state is not None:
            with beside("keep a conversation"):
                if has_answered(request):
                    self.keep_chain(state, EndedRequest(self._cache, request))

    def released(self, request: Any) -> None:
        """The request's slots were given back: it has ended, or was retracted."""
        state = known_state(request)
        if state is not None:
            with beside("settle a request"):
                self._host_tier.forget(state.request_id)
                self.let_go(state, ended=request.finished())
