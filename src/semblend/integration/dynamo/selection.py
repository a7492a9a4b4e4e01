"""Dynamo's SelectionService, in process: whom it would take, what that costs, and booking.

Calls, in order, for one request: :meth:`SelectionView.look` (no booking), the placement
decision elsewhere, then either Dynamo's own `select_and_reserve` or :meth:`SelectionView.book`
with the tokens that are really left to compute; `prefilled` and `finished` as it runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceLoad:
    """One instance as Dynamo sees it, for one prompt."""

    instance_id: int
    dp_rank: int
    queued_tokens: int
    """Prefill tokens booked there, without this prompt."""
    prefix_tokens: int
    """Exact prefix of this prompt that its cache holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterView:
    """What Dynamo would do with a prompt."""

    instance_id: int
    dp_rank: int
    effective_prefill_tokens: int
    loads: tuple[InstanceLoad, ...]


class SelectionView:
    """A small, typed window on a `dynamo._core.SelectionService`.

    Parameters
    ----------
    service
        The service; workers are registered with it by whoever owns it.
    model_name
        The model as registered there.
    """

    def __init__(self, service: Any, *, model_name: str) -> None:
        self._service = service
        self._model_name = model_name

    async def look(self, tokens: Sequence[int]) -> RouterView:
        """Dynamo's own choice and every instance's load, without booking anything."""
        request = {"model_name": self._model_name, "token_ids": list(tokens)}
        choice, overlaps, potential = await asyncio.gather(
            self._service.select(dict(request)),
            self._service.overlap_scores(dict(request)),
            self._service.potential_loads(dict(request)),
        )
        block = int(overlaps["block_size"])
        prefixes = {
            (int(item["worker_id"]), int(item["dp_rank"])): block * int(item["device_blocks"])
            for item in overlaps["workers"]
        }
        loads = []
        for item in potential:
            name = (int(item["worker_id"]), int(item["dp_rank"]))
            prefix = min(prefixes.get(name, 0), len(tokens))
            # What Dynamo foresees there includes this prompt behind its prefix.
            queued = int(item["potential_prefill_tokens"]) - (len(tokens) - prefix)
            loads.append(
                InstanceLoad(
                    instance_id=name[0],
                    dp_rank=name[1],
                    queued_tokens=max(0, queued),
                    prefix_tokens=prefix,
                )
            )
        return RouterView(
            instance_id=int(choice["worker_id"]),
            dp_rank=int(choice["dp_rank"]),
            effective_prefill_tokens=int(choice["effective_prefill_tokens"]),
            loads=tuple(loads),
        )

    async def book(
        self,
        request_id: str,
        tokens: Sequence[int],
        *,
        instance_id: int,
        dp_rank: int = 0,
        effective_prefill_tokens: int,
    ) -> None:
        """Tell Dynamo that a request goes to an instance, and how much it has to compute there."""
        await self._service.create_reservation(
            {
                "model_name": self._model_name,
                "selection_id": request_id,
                "worker_id": instance_id,
                "dp_rank": dp_rank,
                "token_ids": list(tokens),
                "effective_prefill_tokens": effective_prefill_tokens,
            }
        )

    async def prefilled(self, request_id: str) -> None:
        """The first token is there."""
        await self._service.prefill_complete(request_id)

    async def finished(self, request_id: str) -> None:
        """The last token is there."""
        await self._service.free_reservation(request_id)
