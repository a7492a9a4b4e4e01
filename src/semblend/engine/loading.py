"""A load on its way: what a request's first pass puts in place, layer by layer.

On a GPU admission does not wait for donor K/V from the host. It leases and checks
the donors, starts the first copies and leaves the rest to the request's first pass. A
load is used once: a pass that fails half way leaves its request to be computed from tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack

import torch

from semblend.core.faults import FaultPoint, reach
from semblend.core.plan import Plan
from semblend.core.tokens import TokenArray
from semblend.engine.layerwise import LayerwiseLoad
from semblend.engine.materialise import DonorSource, layerwise_spans
from semblend.engine.pages import PageTable
from semblend.engine.pool import PagedPool
from semblend.kv.rotary import RotaryTable


class PendingLoad:
    """A layer-wise load and the leases it reads from; closing it again changes nothing."""

    def __init__(self, load: LayerwiseLoad, leases: ExitStack) -> None:
        self.load = load
        self._leases = leases

    def close(self) -> None:
        """Give the donors back. Copies already started keep their memory until they are done."""
        self._leases.close()


def start_load(
    plan: Plan,
    tokens: TokenArray,
    *,
    table: PageTable,
    pool: PagedPool,
    rotary: RotaryTable,
    donors: DonorSource,
    stream: torch.cuda.Stream | None,
) -> PendingLoad:
    """Lease and check a plan's donors and start the first copies.

    Raises
    ------
    DonorError, StorageError, PlanError
        As :func:`semblend.engine.materialise.load_spans` does; nothing is held then.
    """
    with ExitStack() as leases:
        load = leases.enter_context(
            layerwise_spans(
                plan,
                tokens,
                table=table,
                pool=pool,
                rotary=rotary,
                donors=donors,
                stream=stream,
            )
        )
        return PendingLoad(load, leases.pop_all())


def layers_of(loads: Iterable[PendingLoad]) -> Callable[[int], None] | None:
    """What a pass calls before each layer to bring all of `loads` in; None for none."""
    all_loads = [pending.load for pending in loads]
    if not all_loads:
        return None

    def before_layer(layer: int) -> None:
        for load in all_loads:
            load(layer)
            reach(FaultPoint.COPY)

    return before_layer
