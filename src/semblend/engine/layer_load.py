"""A pending load, which a request's first pass puts in place layer by layer.

On a GPU, admission does not wait for donor K/V from the host. It leases the donors, starts the
first copies and leaves the rest to the request's first pass. Separate threads compute checksums
meanwhile, and the pass's result is held back until they are known. A load is used once: if a pass
fails half way, or read corrupt K/V, its request is computed from tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack

import torch

from semblend.core.faults import FaultPoint, reach
from semblend.core.plan import Plan
from semblend.core.tokens import TokenArray
from semblend.engine.cache.pages import PageTable
from semblend.engine.cache.pool import PagedPool
from semblend.engine.materialise import DonorSource, layerwise_spans
from semblend.kv.checking import Checking
from semblend.kv.depth_drift import DepthDrift
from semblend.kv.layerwise import LayerwiseLoad
from semblend.kv.rotary_table import RotaryTable


class PendingLoad:
    """A layer-wise load and the leases it reads from. Closing it is idempotent."""

    def __init__(self, load: LayerwiseLoad, leases: ExitStack) -> None:
        self.load = load
        self._leases = leases
        self._checks = Checking(load.checks)
        self.placed = False
        """Whether all layers are already in place, before any pass."""

    def place(self, layers: int) -> None:
        """Put all layers in place now, because a probe reads them before the first pass."""
        self.placed = True
        for layer in range(layers):
            self.load(layer)
            reach(FaultPoint.COPY)

    def is_sound(self) -> bool:
        """Wait for the checksums. Returns whether everything that was read is intact.

        Raises
        ------
        Exception
            Whatever a check raised, in which case nothing is known.
        """
        return self._checks.is_sound()

    def close(self) -> None:
        """Release the donors. Copies already started keep their memory until they finish."""
        self._checks.wait()
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
    drift: DepthDrift | None = None,
) -> PendingLoad:
    """Lease a plan's donors, start the first copies, and start checking what they read.

    Raises
    ------
    DonorError, StorageError, PlanError
        As in :func:`semblend.engine.materialise.load_spans`. Nothing is held then.
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
                drift=drift,
            )
        )
        return PendingLoad(load, leases.pop_all())


def layers_of(loads: Iterable[PendingLoad]) -> Callable[[int], None] | None:
    """The hook a pass calls before each layer to place all `loads`; None if there are none."""
    all_loads = [pending.load for pending in loads if not pending.placed]
    if not all_loads:
        return None

    def before_layer(layer: int) -> None:
        for load in all_loads:
            load(layer)
            reach(FaultPoint.COPY)

    return before_layer
