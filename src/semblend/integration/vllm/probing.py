"""Asking a dynamic policy in vLLM's worker: the tail runs over the spans in a nested pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial

import torch

from semblend.core.errors import CapacityError, DonorError
from semblend.integration.probing import TailProbe, watch_queries
from semblend.integration.vllm.metadata import LoadCommand
from semblend.integration.vllm.nested_pass import NestedPass, hole_sequences
from semblend.integration.vllm.paged_access import PagedAccess
from semblend.integration.vllm.pass_split import VirtualSequence
from semblend.kv.attention_weights import TAIL_QUERIES, attention_weights
from semblend.planning.policies.base import Scores, policy_from_spec
from semblend.planning.recompute import probed

Reduce = Callable[[torch.Tensor], torch.Tensor]
"""Adds a tensor up over the ranks: each has its own heads, and all must choose alike."""


def refined(
    command: LoadCommand,
    *,
    nested: NestedPass,
    access: PagedAccess,
    reduce: Reduce,
    most_tokens: int,
) -> LoadCommand:
    """The load with the holes a dynamic policy adds now that the spans are in place.

    Raises
    ------
    DonorError, CapacityError
        If nothing is left to reuse, or more would be computed than one pass may.
    """
    plan = command.refine
    if plan is None:
        return command
    probe = TailProbe(lambda: _tail_attention(command, nested=nested, access=access, reduce=reduce))
    plan = probed(plan, command.tokens, policy_from_spec(plan.policy), probe)
    holes = sum(map(len, plan.holes))
    if not plan.reused_tokens:
        raise DonorError(f"{plan.policy} recomputes every reusable token")
    if holes > most_tokens:
        raise CapacityError(f"{holes} hole tokens, one pass computes at most {most_tokens}")
    return replace(command, copies=plan.copies, holes=plan.holes)


def _tail_attention(
    command: LoadCommand, *, nested: NestedPass, access: PagedAccess, reduce: Reduce
) -> Scores:
    """Attention mass of the last queries on each token, all heads of the later layers.

    The pass writes the K/V of holes and tail, where the passes that follow write again.
    """
    size = len(command.tokens)
    if len(command.block_ids) * access.block_size < size:
        raise DonorError("the prompt's tail has no blocks in this step yet")
    asked = min(TAIL_QUERIES, size - command.end)
    mass = torch.zeros(size, dtype=torch.float64)

    def watch(layer: int, query: torch.Tensor) -> None:
        keys = access.read_layer(layer, command.block_ids, 0, size)[0]
        rows = query.view(-1, query.shape[-1] // access.head_dim, access.head_dim)[-asked:]
        weights = attention_weights(rows, keys, first=size - asked)
        mass.add_(weights.sum(dim=(0, 1)).double().cpu())

    @contextmanager
    def watching() -> Iterator[None]:
        with ExitStack() as hooks:
            for layer in range(len(access.layers) // 2, len(access.layers)):
                handle = watch_queries(access.layers[layer], partial(watch, layer), named="query")
                hooks.callback(handle.remove)
            yield

    nested.run([*hole_sequences(command, access), _tail(command, access)], around_last=watching())
    scores: Scores = reduce(mass).numpy()
    return scores


def _tail(command: LoadCommand, access: PagedAccess) -> VirtualSequence:
    size = len(command.tokens)
    return VirtualSequence(
        tokens=torch.from_numpy(command.tokens[command.end :]),
        positions=torch.arange(command.end, size),
        slots=access.slots(command.block_ids, command.end, size),
        block_ids=command.block_ids,
        length=size,
    )
