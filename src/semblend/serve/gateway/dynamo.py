"""Placement beside Dynamo's own selection: pin where a donor pays, leave Dynamo alone elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

from semblend.core.errors import SemBlendError
from semblend.core.namespace import Namespace
from semblend.core.tokens import TokenArray
from semblend.fleet.directory.directory import Directory
from semblend.fleet.keys import FleetKeys
from semblend.fleet.placement.chooser import Placement, WorkerLoad, choose
from semblend.fleet.placement.cost import FleetCost
from semblend.fleet.sketch import DEFAULT_SAMPLING, sketch
from semblend.integration.dynamo.pinning import pin_headers
from semblend.integration.dynamo.selection import RouterView, SelectionView


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamoDecision:
    """What to do with one request."""

    placement: Placement
    router: RouterView
    headers: dict[str, str]
    """Headers that pin it; empty where Dynamo decides."""


class DynamoProvider:
    """Compares Dynamo's choice with the owners of donors.

    Workers' SEMBLEND_WORKER_ID is their Dynamo instance id, so that events and Dynamo's
    catalogue speak of the same workers.
    """

    def __init__(
        self,
        view: SelectionView,
        directory: Directory,
        *,
        secret: bytes,
        cost: FleetCost,
        sampling: int = DEFAULT_SAMPLING,
        can_reuse: bool = True,
    ) -> None:
        self._view = view
        self._directory = directory
        self._secret = secret
        self._cost = cost
        self._sampling = sampling
        self._can_reuse = can_reuse

    async def decide(
        self, request_id: str, tokens: TokenArray, namespace: Namespace
    ) -> DynamoDecision:
        """Decide and, where a worker is pinned, book its load with Dynamo."""
        ids = tokens.tolist()
        router = await self._view.look(ids)
        keys = FleetKeys.of(namespace, self._secret)
        found = self._directory.lookup(
            sketch(tokens, keys, sampling=self._sampling), keys.namespace_id
        )
        placement = choose(
            len(ids),
            found,
            [
                WorkerLoad(
                    worker_id=str(load.instance_id),
                    dp_rank=load.dp_rank,
                    queued_tokens=load.queued_tokens,
                    prefix_tokens=load.prefix_tokens,
                )
                for load in router.loads
            ],
            self._cost,
            can_reuse=self._can_reuse,
            router_worker=(str(router.instance_id), router.dp_rank),
        )
        pinned = placement.pinned
        if pinned is None:
            return DynamoDecision(placement=placement, router=router, headers={})
        left = len(ids) - pinned.prefix_tokens
        left -= int(self._cost.reuse_share * (pinned.covered_tokens - pinned.prefix_tokens))
        try:
            await self._view.book(
                request_id,
                ids,
                instance_id=int(pinned.worker_id),
                dp_rank=pinned.dp_rank,
                effective_prefill_tokens=max(1, left),
            )
        except ValueError as error:
            raise SemBlendError(f"Dynamo took no reservation: {error}") from error
        return DynamoDecision(
            placement=placement, router=router, headers=pin_headers(pinned.worker_id)
        )
