"""Where an engine keeps K/V, described the same way for every engine: a strided view per layer.

Pools differ in how they order blocks, heads, K and V, but in all of them an element is found by
adding up strides. Here each layer has a K and a V view [blocks, block_size, kv_heads, head_dim] of
the engine's memory, and a *slot* is block * block_size + offset:

    vLLM      [blocks, 2, block_size, heads, dim], [2, blocks, ...], [blocks, heads, size, 2 dim]
    SGLang    two lists of [slots, heads, dim]
    TensorRT  [blocks, layers, 2, heads, block_size, dim]
    ours      [layers, 2, pages, page_size, heads, dim], and segments [layers, 2, tokens, ...]
    MLA       [blocks, block_size, latent and k_pe] in vLLM: K views of one head, and no V
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from semblend.core.errors import PlanError
from semblend.kv.layout import by_slot


class TokenWriter(Protocol):
    """A pool that only its engine's own code can write, layer by layer."""

    @property
    def layer_count(self) -> int:
        """Number of layers with K/V."""
        ...

    @property
    def slot_count(self) -> int:
        """Number of tokens it has room for."""
        ...

    @property
    def parts(self) -> int:
        """2 for K and V; 1 if there are only rows that both are made from."""
        ...

    @property
    def head_shape(self) -> tuple[int, int]:
        """K/V heads and head dimension."""
        ...

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def clipped(self) -> torch.Tensor | None:
        """Counts what did not fit into the pool's number format; see `kv.numbers`."""
        ...

    def write(
        self, layer: int, keys: torch.Tensor, values: torch.Tensor | None, slots: torch.Tensor
    ) -> None:
        """Write K and V of tokens, [tokens, kv_heads, head_dim], to their slots.

        `values` is None if there is one part.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PagedKv:
    """K and V of all layers, as views with the same layout in every layer and for K and V."""

    keys: tuple[torch.Tensor, ...]
    """One per layer, [blocks, block_size, kv_heads, head_dim], with any strides."""
    values: tuple[torch.Tensor, ...] = ()
    """As many, or none: see `kv.layout`."""
    stack: torch.Tensor | None = None
    """[layers, parts, slots, kv_heads, head_dim] over the same memory, if it is one tensor."""
    clipped: torch.Tensor | None = None
    """int64 [1]: counts what did not fit into the pool's number format; see `kv.numbers`."""
    strides: tuple[int, int, int, int] = field(init=False)
    """Of a block, a token, a head and an element, in elements; 0 if there is only one."""
    memory: tuple[range, ...] = field(init=False)
    """Address ranges of the underlying memory."""

    def __post_init__(self) -> None:
        views = (*self.keys, *self.values)
        paired = not self.values or len(self.keys) == len(self.values)
        if not self.keys or not paired or self.keys[0].ndim != 4:
            raise PlanError(
                f"paged K/V: expected K views [blocks, block_size, kv_heads, head_dim] and as "
                f"many of V, or none, got {[tuple(view.shape) for view in views[:2]]} of "
                f"{len(views)}"
            )
        first = views[0]
        shape, strides, dtype, device = first.shape, _strides(first), first.dtype, first.device
        for view in views[1:]:
            if (
                view.shape != shape
                or view.dtype != dtype
                or view.device != device
                or _strides(view) != strides
            ):
                raise PlanError(
                    f"paged K/V: expected layers with the same layout, got {tuple(shape)} "
                    f"{strides} {dtype} and {tuple(view.shape)} {_strides(view)} {view.dtype}"
                )
        storages = (view.untyped_storage() for view in views)
        memory = {s.data_ptr(): range(s.data_ptr(), s.data_ptr() + s.nbytes()) for s in storages}
        object.__setattr__(self, "strides", strides)
        object.__setattr__(self, "memory", tuple(memory.values()))

    @classmethod
    def of_tensor(cls, kv: torch.Tensor) -> PagedKv:
        """Wrap one of our own pools or segments (see `kv.layout`).

        Raises
        ------
        PlanError
            If the tensor has neither shape, or its tokens are not contiguous.
        """
        slots = by_slot(kv)
        parts = slots[:, :, None].transpose(2, 3)  # every slot is its own block
        layers = range(kv.shape[0])
        return cls(
            keys=tuple(parts[layer, 0] for layer in layers),
            values=tuple(parts[layer, 1] for layer in layers if kv.shape[1] == 2),
            stack=slots,
        )

    @classmethod
    def of_slots(cls, keys: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> PagedKv:
        """Wrap pools of single slots, [slots, kv_heads, head_dim] per layer."""
        return cls(
            keys=tuple(pool[:, None] for pool in keys),
            values=tuple(pool[:, None] for pool in values),
        )

    @property
    def layer_count(self) -> int:
        return len(self.keys)

    @property
    def parts(self) -> int:
        """2 for K and V; 1 if there are only rows that both are made from."""
        return 2 if self.values else 1

    @property
    def block_size(self) -> int:
        return int(self.keys[0].shape[1])

    @property
    def slot_count(self) -> int:
        return int(self.keys[0].shape[0] * self.keys[0].shape[1])

    @property
    def head_shape(self) -> tuple[int, int]:
        """K/V heads and head dimension."""
        heads, dim = self.keys[0].shape[2:]
        return int(heads), int(dim)

    @property
    def dtype(self) -> torch.dtype:
        return self.keys[0].dtype

    @property
    def device(self) -> torch.device:
        return self.keys[0].device

    def lies_as(self, other: PagedKv) -> bool:
        """Whether each slot is the same memory in both."""
        mine, theirs = self.keys[0], other.keys[0]
        return (
            mine.data_ptr() == theirs.data_ptr()
            and mine.shape == theirs.shape
            and self.strides == other.strides
        )

    def overlaps(self, address: int) -> bool:
        """Whether an address is in the underlying memory."""
        return any(address in memory for memory in self.memory)


def _strides(view: torch.Tensor) -> tuple[int, int, int, int]:
    # The stride of a dimension of size 1 is meaningless.
    block, token, head, number = (
        stride if size > 1 else 0 for size, stride in zip(view.shape, view.stride(), strict=True)
    )
    return block, token, head, number
