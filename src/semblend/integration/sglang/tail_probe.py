"""Asking dynamic policies in SGLang: the tail runs over the spans ahead of its own forward.

Once the spans of a batch are in place, its holes and tails are computed in nested passes
and the attention of the last queries is read off, layer by layer; what the policies then
choose becomes holes. The engine's own forward writes the tail's K/V again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from semblend.core.errors import UnsupportedModelError
from semblend.core.plan import Hole, Plan
from semblend.integration.probing import (
    ProbeUnavailableError,
    TailProbe,
    is_dynamic,
    left_to_compute,
    watch_queries,
)
from semblend.integration.sglang.kv_pool import KvPool
from semblend.integration.sglang.loading import SpanLoader
from semblend.integration.sglang.nested_pass import NestedPass, VirtualSequence
from semblend.integration.sglang.request_state import Loaded, PrivateLoad, loads_of
from semblend.kv.attention_weights import TAIL_QUERIES, attention_weights
from semblend.planning.policies.base import Scores, policy_from_spec
from semblend.planning.recompute import probed


class PolicyProbe:
    """Lets dynamic policies choose for the requests of a batch."""

    def __init__(
        self, runner: Any, *, pool: KvPool, nested: NestedPass, loader: SpanLoader
    ) -> None:
        self._runner = runner
        self._pool = pool
        self._nested = nested
        self._loader = loader
        self._attention = _attention_layers(runner.model, pool.layers)

    def holes(self, batch: Any, loaded: Loaded) -> dict[int, tuple[Hole, ...]]:
        """What is left to compute in every row; loads hold their final plans afterwards."""
        loads = loads_of(loaded)
        holes = {row: load.plan.holes for row, _, load in loads}
        asking = [each for each in loads if is_dynamic(each[2].plan.policy)]
        if not asking:
            return holes
        scores = self._tail_attention(batch, {row: load for row, _, load in asking})
        for row, state, load in asking:
            before = load.plan
            after = probed(
                before,
                state.handle.tokens,
                policy_from_spec(before.policy),
                TailProbe(partial(scores.__getitem__, row)),
            )
            state.handle.load = replace(load, plan=after)
            holes[row] = left_to_compute(before, after)
        return holes

    def _tail_attention(self, batch: Any, loads: Mapping[int, PrivateLoad]) -> dict[int, Scores]:
        """Attention mass of every row's last queries on each token, [prompt_tokens]."""
        plans = {row: load.plan for row, load in loads.items()}
        with self._whole_rows(batch, plans) as slots, ExitStack() as hooks:
            watch = _Watch(plans, slots, self._pool)
            for layer in range(self._pool.layers // 2, self._pool.layers):
                seen = partial(watch.queries, layer)
                handle = watch_queries(self._attention[layer], seen, named="q")
                hooks.callback(handle.remove)
            runs = {
                row: (*plan.holes, Hole(plan.end, plan.prompt_tokens))
                for row, plan in plans.items()
            }
            self._nested.run(batch, runs, watched=watch.begin)
        return watch.scores()

    @contextmanager
    def _whole_rows(
        self, batch: Any, plans: Mapping[int, Plan]
    ) -> Iterator[dict[int, torch.Tensor]]:
        """Slots of whole prompts, [prompt_tokens] a row.

        A tail that this step computes only in part is lent slots for the rest.
        """
        table = self._runner.req_to_token_pool.req_to_token
        slots: dict[int, torch.Tensor] = {}
        with ExitStack() as lent:
            for row, plan in plans.items():
                line = table[int(batch.req_pool_indices_cpu[row])]
                present = batch.prefix_lens[row] + batch.extend_lens[row]
                missing = plan.prompt_tokens - present
                if missing > 0:
                    taken = self._loader.take(missing)
                    lent.callback(self._loader.give_back, taken)
                    line[present : plan.prompt_tokens] = taken[:missing].to(line.dtype)
                slots[row] = line[: plan.prompt_tokens].to(torch.int64)
            yield slots


class _Watch:
    """Adds up what the last queries of some rows look at, while passes run."""

    def __init__(
        self, plans: Mapping[int, Plan], slots: Mapping[int, torch.Tensor], pool: KvPool
    ) -> None:
        self._slots = slots
        self._pool = pool
        self._first = {
            row: plan.prompt_tokens - min(TAIL_QUERIES, plan.tail_tokens)
            for row, plan in plans.items()
        }
        self._mass = {
            row: torch.zeros(len(line), dtype=torch.float64, device=line.device)
            for row, line in slots.items()
        }
        self._seen = dict.fromkeys(slots, 0)
        self._pass: Sequence[VirtualSequence] = ()

    def begin(self, sequences: Sequence[VirtualSequence]) -> None:
        """A pass over these sequences is about to run."""
        self._pass = sequences

    @torch.inference_mode()
    def queries(self, layer: int, query: torch.Tensor) -> None:
        """A layer's queries, [tokens of the pass and padding, query_heads * head_dim], rotated."""
        keys, offset = self._pool.keys(layer), 0
        for sequence in self._pass:
            row, end = sequence.row, sequence.end
            start = max(sequence.start, self._first[row])
            if start < end:
                mine = query[offset + start - sequence.start : offset + end - sequence.start]
                mine = mine.reshape(end - start, -1, keys.shape[-1])
                weights = attention_weights(mine, keys[self._slots[row][:end]], first=start)
                self._mass[row][:end] += weights.sum(dim=(0, 1)).double()
                self._seen[row] += end - start
            offset += end - sequence.start

    def scores(self) -> dict[int, Scores]:
        """The mass on every token, once all passes have run.

        Raises
        ------
        ProbeUnavailableError
            If layers ran where nobody could look at them.
        """
        layers = self._pool.layers - self._pool.layers // 2
        for row, seen in self._seen.items():
            if seen != layers * (len(self._slots[row]) - self._first[row]):
                raise ProbeUnavailableError("the model's attention layers were not seen to run")
        # The one time the host waits for the device: the policies are asked here.
        masses = torch.cat(list(self._mass.values())).cpu()
        parts = torch.split(masses, [len(line) for line in self._slots.values()])
        return {row: part.numpy() for row, part in zip(self._slots, parts, strict=True)}


def _attention_layers(model: Any, layers: int) -> list[Any]:
    """The model's attention modules in the order of the pool's layers."""
    from sglang.srt.layers.radix_attention import RadixAttention

    found = [module for module in model.modules() if isinstance(module, RadixAttention)]
    found.sort(key=lambda module: module.layer_id)
    if [module.layer_id for module in found] != list(range(layers)):
        raise UnsupportedModelError(f"{len(found)} attention layers for {layers} of K/V")
    return found
