"""The scheduler's part in moving donors: what to share, what to fetch, which requests wait."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from semblend.core.errors import StorageError
from semblend.core.namespace import Namespace
from semblend.core.plan import Plan
from semblend.core.tokens import TokenArray
from semblend.fleet.announcer import DonorAnnouncer
from semblend.fleet.directory.directory import Directory
from semblend.fleet.directory.index import SharedDonor
from semblend.fleet.keys import FleetKeys, donor_key
from semblend.fleet.placement.expected_time import FleetCost
from semblend.fleet.sketch import sketch
from semblend.fleet.transport.exporting import ADOPTED_PREFIX
from semblend.fleet.transport.payload import decode_manifest, manifest_name
from semblend.fleet.transport.store import ObjectStore
from semblend.integration.scheduler.engine_planner import Offer
from semblend.integration.scheduler.orders import FetchCommand, WorkerReport
from semblend.integration.scheduler.parts import SchedulerParts
from semblend.integration.scheduler.request import Request
from semblend.integration.worker.segment_names import rank_keys

logger = logging.getLogger("semblend.adapter")

_SLACK = 4.0
"""How many times the expected duration a transfer may take before its requests stop waiting."""
_LEAST_WAIT_S = 1.0
_SHARING_S = 10.0
"""How long the engine keeps stepping for a donor in transit to the store."""


@dataclass(slots=True, eq=False)
class _Fetch:
    """A donor in transit to this machine."""

    donor_id: str
    key: int
    namespace: Namespace
    share_key: bytes
    deadline: float
    manifest: Future[TokenArray]
    ordered: bool = False
    over: bool = False


@dataclass(slots=True)
class _Sharing:
    """A donor in transit to the shared store."""

    donor: tuple[str, TokenArray, bytes]
    ranks_left: int
    until: float


class FleetDonors:
    """Called on the scheduler's thread; only reading manifests happens elsewhere.

    No method raises into the engine: whatever goes wrong, the prompt is computed as if there
    were no fleet.
    """

    def __init__(
        self,
        parts: SchedulerParts,
        *,
        announcer: DonorAnnouncer,
        directory: Directory,
        store: ObjectStore,
        worker_id: str,
        dp_rank: int,
        kv_bytes_per_token: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._parts = parts
        self._announcer = announcer
        self._directory = directory
        self._store = store
        self._rank = (worker_id, dp_rank)
        self._clock = clock
        self._kv_bytes = kv_bytes_per_token
        self._fetches: dict[int, _Fetch] = {}
        self._waiting: dict[str, _Fetch] = {}
        self._orders: list[FetchCommand] = []
        self._sharing: dict[str, _Sharing] = {}
        self._serials = itertools.count(1)
        self._readers = ThreadPoolExecutor(2, thread_name_prefix="semblend-manifests")
        self._stopped = False
        self.fetched = 0
        self.failed = 0

    # -- sharing -----------------------------------------------------------------------

    def share(self, donor_id: str, tokens: TokenArray, share_key: bytes) -> int | None:
        """A donor is being captured: the key under which its ranks share it in the fleet."""
        if self._stopped:
            return None
        self._sharing[donor_id] = _Sharing(
            donor=(donor_id, tokens, share_key),
            ranks_left=self._parts.setup.ranks,
            until=self._clock() + _SHARING_S,
        )
        return donor_key(*self._rank, donor_id)

    @property
    def has_pending_work(self) -> bool:
        """Whether reports on shared donors are still expected from the workers."""
        now = self._clock()
        return any(sharing.until > now for sharing in self._sharing.values())

    def settle(self, report: WorkerReport) -> None:
        """Announce what every rank shares; withdraw what any rank does not; end fetches."""
        for donor_id, ranks in report.shared.items():
            if donor_id in self._sharing:
                self._sharing[donor_id].ranks_left -= ranks
        for donor_id in report.withdrawn:
            self._sharing.pop(donor_id, None)
            held = self._parts.planner.pipeline.holds(donor_id)
            self._announcer.withdrawn(donor_id, local=held)
        for donor_id in report.rejected:
            self._sharing.pop(donor_id, None)
        for donor_id, sharing in list(self._sharing.items()):
            # Others must learn of a donor before they learn where it is.
            if sharing.ranks_left <= 0 and self._parts.planner.pipeline.holds(donor_id):
                del self._sharing[donor_id]
                self._announce(sharing)
        for fetch in [f for f in self._fetches.values() if f.donor_id in report.rejected]:
            self._failed(fetch, report.rejected[fetch.donor_id])

    def _announce(self, sharing: _Sharing) -> None:
        donor_id, _, share_key = sharing.donor
        keys = rank_keys(share_key, 0, self._parts.setup.ranks)
        locator = manifest_name(donor_key(*self._rank, donor_id), keys)
        self._announcer.shared(sharing.donor, backend=self._store.backend, locator=locator)
        self._parts.stats.count("donors_shared")

    # -- fetching ----------------------------------------------------------------------

    def waits_for(self, request: Request[Any], plan: Plan, computed_tokens: int) -> bool:
        """Whether a donor worth waiting for is in transit."""
        try:
            fetch = self._waiting.get(request.request_id)
            if fetch is None:
                fetch = self._begin(request, plan, computed_tokens)
            waits = fetch is not None and self._goes_on(fetch)
        except Exception:
            logger.warning("SemBlend could not look for donors elsewhere", exc_info=True)
            waits = False
        if not waits:
            self._waiting.pop(request.request_id, None)
        return waits

    def take_fetches(self) -> list[FetchCommand]:
        """Orders to the workers."""
        orders, self._orders = self._orders, []
        return orders

    def forget(self, request_id: str) -> None:
        """A request ended; the fetch it waited for continues for others."""
        self._waiting.pop(request_id, None)

    def stop(self) -> None:
        """The weights may have changed; names derive from those the engine started with."""
        if not self._stopped:
            logger.warning("SemBlend shares and fetches no donors any more: the cache was reset")
        self._stopped = True
        self._fetches.clear()
        self._waiting.clear()
        self._sharing.clear()

    def close(self) -> None:
        """Stop reading."""
        self._readers.shutdown(wait=False, cancel_futures=True)

    def _begin(self, request: Request[Any], plan: Plan, computed_tokens: int) -> _Fetch | None:
        if self._stopped or request.asked_elsewhere:
            return None
        request.asked_elsewhere = True
        pipeline = self._parts.planner.pipeline
        if len(request.tokens) < pipeline.settings.min_prompt_tokens:
            return None
        cost = self._cost()
        if cost is None:
            return None
        share_key = pipeline.share_key(request.namespace)
        keys = FleetKeys.of_root(share_key)
        drawn = sketch(request.tokens, keys, sampling=pipeline.settings.fleet_sampling)
        shared = self._directory.lookup(drawn, keys.namespace_id).shared
        if shared is None:
            return None
        local = computed_tokens + (plan.reused_tokens if plan.spans else 0)
        move_s = worth_moving(shared, cost, len(request.tokens), computed_tokens, local)
        if move_s is None:
            return None
        fetch = self._fetches.get(shared.donor_key) or self._new(shared, request, share_key, move_s)
        self._waiting[request.request_id] = fetch
        return fetch

    def _new(
        self, shared: SharedDonor, request: Request[Any], share_key: bytes, move_s: float
    ) -> _Fetch:
        name = manifest_name(shared.donor_key, rank_keys(share_key, 0, self._parts.setup.ranks))
        fetch = _Fetch(
            donor_id=f"{ADOPTED_PREFIX}{shared.donor_key:016x}.{next(self._serials)}",
            key=shared.donor_key,
            namespace=request.namespace,
            share_key=share_key,
            deadline=self._clock() + max(_LEAST_WAIT_S, _SLACK * move_s),
            manifest=self._readers.submit(self._read_manifest, name),
        )
        self._fetches[shared.donor_key] = fetch
        self._parts.audit.event(
            "remote_donor_fetch_started",
            request.request_id,
            donor_id=fetch.donor_id,
            covered_tokens=shared.covered_tokens,
            expected_ms=move_s * 1e3,
        )
        return fetch

    def _goes_on(self, fetch: _Fetch) -> bool:
        """Advance the fetch; return whether it is still worth waiting for."""
        if fetch.over:
            return False
        if self._parts.planner.pipeline.holds(fetch.donor_id):
            self._ends(fetch)
            self.fetched += 1
            self._parts.stats.count("donors_fetched")
            self._parts.audit.event("remote_donor_fetched", donor_id=fetch.donor_id)
            return False
        if self._clock() > fetch.deadline:
            self._failed(fetch, "it took too long")
            return False
        if not fetch.ordered and fetch.manifest.done():
            try:
                self._order(fetch, fetch.manifest.result())
            except Exception as error:
                self._failed(fetch, str(error))
                return False
        return True

    def _order(self, fetch: _Fetch, tokens: TokenArray) -> None:
        planner, setup = self._parts.planner, self._parts.setup
        offer = Offer(
            donor_id=fetch.donor_id,
            request_id=fetch.donor_id,
            tokens=tokens,
            namespace=fetch.namespace,
            blocks=-(-len(tokens) // setup.block_size),
        )
        if not planner.offer(offer):
            raise StorageError("it is held already, or on its way")
        fetch.ordered = True
        self._orders.append(
            FetchCommand(
                donor_id=fetch.donor_id,
                shared_as=fetch.key,
                tokens=tokens,
                share_key=fetch.share_key,
            )
        )

    def _read_manifest(self, name: str) -> TokenArray:
        data = self._store.get(name)
        if data is None:
            raise StorageError("the donor was withdrawn")
        return decode_manifest(data)

    def _failed(self, fetch: _Fetch, why: str) -> None:
        self._ends(fetch)
        self.failed += 1
        self._parts.stats.count("fetches_failed")
        self._parts.audit.event("remote_donor_fetch_failed", donor_id=fetch.donor_id, reason=why)

    def _ends(self, fetch: _Fetch) -> None:
        fetch.over = True
        self._fetches.pop(fetch.key, None)

    def _cost(self) -> FleetCost | None:
        """What computing and moving take here; None until this engine has computed a prompt."""
        seconds = self._parts.clock.seconds_per_unit
        if seconds is None:
            return None
        return FleetCost(
            compute=self._parts.clock.cost,
            seconds_per_token=seconds,
            kv_bytes_per_token=self._kv_bytes,
            transfer_bytes_per_s=self._parts.setup.settings.transport_bytes_per_s,
        )


def worth_moving(
    shared: SharedDonor, cost: FleetCost, prompt: int, computed: int, local: int
) -> float | None:
    """Seconds the donor's transfer is expected to take, if it beats computing; else None."""
    here = cost.prefill_s(prompt, computed, local)
    there = cost.prefill_s(prompt, computed, max(local, shared.covered_tokens))
    move = cost.transfer_s(shared.token_count)
    return move if there + move < here - cost.min_gain_s else None
