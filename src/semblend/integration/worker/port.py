"""What an engine offers the worker side of its adapter: single actions, never decisions.

The side is called in this order (see :class:`~semblend.integration.worker.side.WorkerSide`):
`attach` once the K/V cache exists, `bind` once the model does, then in every step
`before_overwrite`, `start_step`, the engine's forward, `after_forward`, and the `take_…` methods.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from semblend.integration.lora_adapter import LoraAdapter
from semblend.integration.worker.sequences import VirtualSequence
from semblend.kv.paged_kv import PagedKv
from semblend.kv.span_batch import Destination


class KvLayers(Protocol):
    """A K/V cache that can be read layer by layer: what asking a policy takes.

    To be subclassed: what is stated here holds where an engine says nothing else.
    """

    head_dim: int
    device: torch.device
    layer_count: int
    """Layers that hold K/V, a drafter's included."""
    draft_layers: int = 0
    """How many of the last layers are a drafter's, which the model itself does not have."""

    def read_layer(
        self, layer: int, block_ids: Sequence[int], start: int, end: int
    ) -> torch.Tensor:
        """K/V of positions [start, end) on one layer: [parts, tokens, kv_heads, head_dim]."""
        ...

    def window(self, layer: int) -> int | None:
        """Tokens a query of a layer sees, itself included; None for all before it."""
        return None


class KvAccess(KvLayers, Protocol):
    """The engine's paged K/V cache, token by token, all layers of this rank.

    A slot is block * block_size + offset.
    """

    block_size: int
    blocks: int
    parts: int = 2
    """2 for K and V; 1 for rows that both are made from (see `kv.layout`)."""
    kv_heads: int
    dtype: torch.dtype
    scratch_block: int
    """A block that is empty while the engine starts: proofs use it."""
    clipped: torch.Tensor | None = None
    """Counts numbers of fp8 K that did not fit where they were moved; None for other formats."""
    pool: PagedKv | None
    """The cache described by strides; None where only the backend knows the layout."""

    @property
    def destination(self) -> Destination:
        """Where spans are copied to."""
        ...

    @property
    def head_shape(self) -> tuple[int, int]:
        """K/V heads of this rank, and numbers per head."""
        return self.kv_heads, self.head_dim

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's K and V on all layers of this rank."""
        numbers = self.layer_count * self.parts * self.kv_heads * self.head_dim
        return numbers * self.dtype.itemsize

    def read(self, block_ids: Sequence[int], start: int, end: int) -> torch.Tensor:
        """K/V of positions [start, end): [layers, parts, tokens, kv_heads, head_dim]."""
        ...

    def read_layer(
        self, layer: int, block_ids: Sequence[int], start: int, end: int
    ) -> torch.Tensor:
        """The same on one layer."""
        return self.read(block_ids, start, end)[layer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """Observes queries while a pass runs."""

    layers: Sequence[int]
    see: Callable[[int, torch.Tensor], None]
    """Called with a layer and its queries, [tokens, heads * head_dim], after their attention."""
    last: int
    """How many of the last queries are wanted. More may be passed."""


class Runs(Protocol):
    """The engine's own model over virtual sequences."""

    def run(self, sequences: Sequence[VirtualSequence], *, watch: Watch | None = None) -> int:
        """Compute the K/V of all sequences' query tokens; returns how many there were.

        Sequences over the same blocks come in the order of their positions. Only the last
        forward is watched, which ends with the last sequences.
        """
        ...


BeforeLayer = Callable[[int], None]
"""Called with each layer before its attention: the K/V it reads is in place on the stream then."""


class Passes(Protocol):
    """The same beside the engine's steps, and what samples need."""

    replayed: int
    """Forwards so far that were replayed from graphs the engine had recorded."""

    def run(
        self,
        sequences: Sequence[VirtualSequence],
        *,
        watch: Watch | None = None,
        before_layer: BeforeLayer | None = None,
        alone: bool = False,
    ) -> int:
        """As in :class:`Runs`; all sequences have one adapter.

        Parameters
        ----------
        before_layer
            Makes the stream wait for a layer's K/V; for all layers, each in turn.
        alone
            Whether no step of the engine is under way: nobody needs its buffers now.
        """
        ...

    def serving(self) -> None:
        """A step of the engine begins: what the engine prepares at start-up is ready."""
        ...

    def prepare(self, adapter: LoraAdapter | None, *, alone: bool) -> None:
        """Make ready what a load's request runs with; None for the base model.

        Raises
        ------
        DonorError
            If it cannot run beside the engine's step, or is not what it was.
        """
        ...

    def adapters_changed(self) -> bool:
        """Whether some adapter has other weights than it had: donors cannot be told apart."""
        ...

    def logits(self, sequence: VirtualSequence, *, last: int) -> torch.Tensor | None:
        """Compute a sequence; log-probabilities after its last tokens, [last, vocabulary].

        On the host, float32. None if none are requested, or on a rank that gathers none.
        """
        ...


class Ranks(Protocol):
    """This rank among those that share one model. Every rank makes the same calls in order."""

    rank: int
    count: int

    def all_true(self, flags: Sequence[bool]) -> list[bool]:
        """Which of the flags are true on every rank."""
        ...

    def summed(self, values: torch.Tensor) -> torch.Tensor:
        """A tensor on the host, summed over the ranks in place."""
        ...
