"""What happens around an attention layer while a pass runs, and its queries."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from semblend.integration.vllm.layer_kv import is_latent


@contextmanager
def attending(
    layer: Any,
    *,
    before: Callable[[], None] | None = None,
    after: Callable[[torch.Tensor], None] | None = None,
) -> Iterator[None]:
    """Call `before` ahead of a layer's attention, `after` with its queries once it has used them.

    Not a hook on the module: compiled code calls what is replaced here directly. Nests.
    """
    latent = is_latent(layer)
    owner, name = (layer, "forward_impl") if latent else (layer.impl, "forward")
    attend, replaced = getattr(owner, name), name in vars(owner)

    def attended(*arguments: Any, **options: Any) -> Any:
        if before is not None:
            before()
        result = attend(*arguments, **options)
        if after is not None:
            after(arguments[0 if latent else 1])  # others are given the layer first
        return result

    setattr(owner, name, attended)
    try:
        yield
    finally:
        if replaced:
            setattr(owner, name, attend)
        else:
            delattr(owner, name)


def queries_of(layer: Any, query: torch.Tensor) -> torch.Tensor:
    """Queries as they meet the rows of the cache, [tokens, heads * row width]."""
    return latent_queries(layer, query) if is_latent(layer) else query


def latent_queries(layer: Any, query: torch.Tensor) -> torch.Tensor:
    """Queries as they meet rows [latent, k_pe]: [tokens, heads * row width].

    A query's first part is multiplied with what makes K of a latent row, so that its product with
    the row is its product with K. They are scaled such that the usual scale of a row's width is
    the model's own.
    """
    heads = query.view(query.shape[0], int(layer.num_heads), -1)
    plain = int(layer.qk_nope_head_dim)
    latent = torch.einsum("thp,hpl->thl", heads[..., :plain], layer.W_UK_T)
    rows = torch.cat((latent, heads[..., plain:]), dim=-1)
    scale = float(layer.scale) * math.sqrt(rows.shape[-1])
    return (rows * scale).flatten(1)
