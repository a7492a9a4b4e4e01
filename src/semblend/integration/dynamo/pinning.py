"""How a request is told to go to one worker: Dynamo's header, others' affinity."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Mapping

from semblend.core.errors import SettingsError

PIN_HEADER = "x-dynamo-worker-instance-id"
"""Sends a request through Dynamo's frontend to one instance."""
SESSION_HEADERS: Mapping[str, str] = {
    "vllm-router": "x-session-id",
    "sglang-router": "x-smg-routing-key",
}
"""Headers by which routers keep requests together (consistent_hash, manual)."""


class RouterAffinity:
    """Session keys for routers that cannot be told a worker, only a key they keep together.

    Which worker a key leads to is the router's secret; it is learned from answers. A worker
    no key is known for is not asked for. Bounded: the keys used longest ago are forgotten.
    """

    def __init__(self, router: str, *, limit: int = 4096, own_keys: int = 64) -> None:
        """Know nothing yet.

        Parameters
        ----------
        own_keys
            Keys for requests that bring none: enough that each worker is led to by some.

        Raises
        ------
        SettingsError
            If it is a router nobody knows the header of.
        """
        if router not in SESSION_HEADERS:
            known = ", ".join(SESSION_HEADERS)
            raise SettingsError(f"router {router!r}: one of {known} expected")
        self.header = SESSION_HEADERS[router]
        self._own = itertools.cycle([f"semblend-{number}" for number in range(own_keys)])
        self._limit = limit
        self._workers: OrderedDict[str, str] = OrderedDict()
        self._keys: dict[str, OrderedDict[str, None]] = {}

    def learn(self, key: str, worker_id: str) -> None:
        """A request with this key was answered by that worker."""
        self._forget(key)
        self._workers[key] = worker_id
        self._keys.setdefault(worker_id, OrderedDict())[key] = None
        if len(self._workers) > self._limit:
            self._forget(next(iter(self._workers)))

    def headers(self, worker_id: str) -> dict[str, str]:
        """Headers that lead to a worker, or none where no key of its is known."""
        keys = self._keys.get(worker_id)
        return {self.header: next(reversed(keys))} if keys else {}

    def next_key(self) -> str:
        """A key for a request that goes anywhere: the next of our own, one after the other."""
        return next(self._own)

    def _forget(self, key: str) -> None:
        worker_id = self._workers.pop(key, None)
        if worker_id is not None:
            keys = self._keys[worker_id]
            keys.pop(key, None)
            if not keys:
                del self._keys[worker_id]
