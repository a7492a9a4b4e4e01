"""Dynamic recompute policies in vLLM: what they may ask, and asking it.

A dynamic policy looks at what the model does with the borrowed K/V before it chooses.
Once the spans are in place, the tail runs once over them in a nested pass and the
attention of its last queries is read off; the chosen blocks become holes of the pass
that follows. What needs cold K/V of every token (deviation, attention to edits) has no
place to be computed here, and policies that ask for it are declined when planning.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from semblend.core.errors import CapacityError, DonorError, SemBlendError
from semblend.core.plan import Span, SpanKind
from semblend.integration.vllm.metadata import LoadCommand
from semblend.integration.vllm.nested_pass import NestedPass, VirtualSequence, hole_sequences
from semblend.integration.vllm.paged_access import PagedAccess
from semblend.planning.policies.base import RecomputeRequest, Scores, policy_from_spec
from semblend.planning.recompute import probed

TAIL_QUERIES = 4
"""The last queries have read the question and are about to answer it (docs/quality.md)."""
Reduce = Callable[[torch.Tensor], torch.Tensor]
"""Adds a tensor up over the ranks: each has its own heads, and all must choose alike."""


class ProbeUnavailableError(SemBlendError):
    """A policy asks for something that cannot be computed in this engine."""


@lru_cache(maxsize=256)
def is_dynamic(spec: str) -> bool:
    """Whether a policy wants a probe."""
    return policy_from_spec(spec).dynamic


@lru_cache(maxsize=256)
def can_probe(spec: str) -> bool:
    """Whether all a policy asks of a probe is the tail's attention; found out by asking it."""
    tokens = np.zeros(512, dtype=np.int32)
    spans = tuple(
        Span(donor_id="d", donor_start=0, target_start=start, length=200, kind=kind)
        for start, kind in ((0, SpanKind.MOVED), (250, SpanKind.BEHIND_EDIT))
    )
    request = RecomputeRequest(tokens=tokens, spans=spans, end=450)
    try:
        policy_from_spec(spec).probed_runs(request, _OnlyTail(size=len(tokens)))
    except ProbeUnavailableError:
        return False
    return True


class _OnlyTail:
    """Answers with nothing for the tail and refuses the rest."""

    def __init__(self, size: int) -> None:
        self.size = size

    def tail_attention(self) -> Scores:
        """No attention anywhere."""
        return np.zeros(self.size)

    def deviation(self, layers: int) -> Scores:
        """Not here."""
        raise ProbeUnavailableError("deviation from cold needs every token computed cold")

    def edit_attention(self, layers: int) -> Scores:
        """Not here."""
        raise ProbeUnavailableError("attention to edits needs every token computed cold")


class TailProbe(_OnlyTail):
    """The probe of one request whose spans are in place."""

    def __init__(
        self, command: LoadCommand, *, nested: NestedPass, access: PagedAccess, reduce: Reduce
    ) -> None:
        super().__init__(len(command.tokens))
        self._command = command
        self._nested = nested
        self._access = access
        self._reduce = reduce

    def tail_attention(self) -> Scores:
        """Attention mass of the last queries on each token, all heads of the later layers.

        The pass writes the K/V of holes and tail, where the passes that follow write again.
        """
        command, access, size = self._command, self._access, self.size
        if len(command.block_ids) * access.block_size < size:
            raise DonorError("the prompt's tail has no blocks in this step yet")
        asked = min(TAIL_QUERIES, size - command.end)
        mass = torch.zeros(size, dtype=torch.float64)

        def watch(layer: int, query: torch.Tensor) -> None:
            keys = access.read_layer(layer, command.block_ids, 0, size)[0]
            rows = query.view(-1, query.shape[-1] // access.head_dim, access.head_dim)[-asked:]
            weights = attention_weights(rows, keys, first=size - asked)
            mass.add_(weights.sum(dim=(0, 1)).double().cpu())

        layers = range(len(access.layers) // 2, len(access.layers))
        with ExitStack() as hooks:
            for layer in layers:
                hooks.callback(_watch(access.layers[layer], layer, watch).remove)
            self._nested.run([*hole_sequences(command, access), _tail(command, access)])
        scores: Scores = self._reduce(mass).numpy()
        return scores


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
    probe = TailProbe(command, nested=nested, access=access, reduce=reduce)
    plan = probed(plan, command.tokens, policy_from_spec(plan.policy), probe)
    holes = sum(map(len, plan.holes))
    if not plan.reused_tokens:
        raise DonorError(f"{plan.policy} recomputes every reusable token")
    if holes > most_tokens:
        raise CapacityError(f"{holes} hole tokens, one pass computes at most {most_tokens}")
    return replace(command, copies=plan.copies, holes=plan.holes)


def attention_weights(query: torch.Tensor, keys: torch.Tensor, *, first: int) -> torch.Tensor:
    """Causal attention weights of rows at positions `first` on: [query_heads, rows, keys].

    `query` is [rows, query_heads, head_dim], `keys` [keys, kv_heads, head_dim], both rotated.
    """
    rows, heads, dim = query.shape
    kv_heads = keys.shape[1]
    grouped = query.view(rows, kv_heads, heads // kv_heads, dim).permute(1, 2, 0, 3).float()
    scores = grouped @ keys.permute(1, 2, 0)[:, None].float() * dim**-0.5
    positions = torch.arange(keys.shape[0], device=keys.device)
    hidden = positions[None] > torch.arange(first, first + rows, device=keys.device)[:, None]
    weights: torch.Tensor = scores.masked_fill(hidden, float("-inf")).softmax(dim=-1)
    return weights.flatten(0, 1)


def _watch(module: Any, layer: int, watch: Callable[[int, torch.Tensor], None]) -> Any:
    """Have `watch` called with a layer's queries once its K/V is written."""

    def after(_: Any, arguments: Sequence[Any], named: dict[str, Any], __: Any) -> None:
        watch(layer, arguments[0] if arguments else named["query"])

    return module.register_forward_hook(after, with_kwargs=True)


def _tail(command: LoadCommand, access: PagedAccess) -> VirtualSequence:
    size = len(command.tokens)
    return VirtualSequence(
        tokens=torch.from_numpy(command.tokens[command.end :]),
        positions=torch.arange(command.end, size),
        slots=access.slots(command.block_ids, command.end, size),
        block_ids=command.block_ids,
        length=size,
    )
