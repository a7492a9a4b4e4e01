"""A batch of SGLang's, by its rows: what passes over holes need of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from semblend.core.plan import Hole, Plan
from semblend.integration.sglang.exact_recompute import with_regions_computed
from semblend.integration.sglang.nested_pass import NestedPass
from semblend.integration.tree.tree_loader import TreeLoader
from semblend.integration.worker.host_ranks import MeetingRanks
from semblend.integration.worker.sequences import PassLimits


class BatchRows:
    """An extend batch that is about to run."""

    def __init__(
        self,
        batch: Any,
        limits: PassLimits,
        *,
        runner: Any,
        attention: Sequence[Any],
        loader: TreeLoader,
        ranks: MeetingRanks,
    ) -> None:
        """`attention` are the modules of the model's layers; `loader` has slots to lend."""
        self.nested = NestedPass(runner, batch, limits, ranks, attention)
        self._batch = batch
        self._table = runner.req_to_token_pool.req_to_token
        self._loader = loader

    def block_of(self, row: int) -> int:
        """The request's row of the slot table."""
        return int(self._batch.req_pool_indices_cpu[row])

    @contextmanager
    def whole(self, row: int, plan: Plan) -> Iterator[None]:
        """Lend a tail that this step computes only in part slots for the rest."""
        present = self._batch.prefix_lens[row] + self._batch.extend_lens[row]
        missing = plan.prompt_tokens - present
        if missing <= 0:
            yield
            return
        line = self._table[self.block_of(row)]
        taken = self._loader.take(missing)
        try:
            line[present : plan.prompt_tokens] = taken[:missing].to(line.dtype)
            yield
        finally:
            self._loader.give_back(taken)

    def with_computed(self, regions: Mapping[int, Hole]) -> Any:
        """The batch, which also computes these regions."""
        return with_regions_computed(self._batch, regions, self._table)

    def tell_cached(self, request: Any, plan: Plan, *, reused: bool) -> None:
        """See `correct_cached_tokens`."""
        correct_cached_tokens(request, plan, reused=reused)


def correct_cached_tokens(request: Any, plan: Plan, *, reused: bool) -> None:
    """SGLang took the whole region for a hit in host memory; say what it really was."""
    if request.retracted_stain:
        return
    region = plan.end - plan.exact_tokens
    kept = plan.continued_tokens + plan.reused_tokens if reused else 0
    request.cached_tokens -= region - kept
    request.cached_tokens_host -= region
    request.cached_tokens_device += kept
