"""Sends a request to one worker: by Dynamo's header, or by other routers' session affinity."""

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
    """Session keys for routers that cannot be given a worker, only a key to keep together.

    Only the router knows which worker a key leads to, so this learns it from answers. A worker
    without a known key cannot be addressed. Bounded: the least recently used keys are dropped.
    """

    def __init__(self, router: str, *, limit: int = 4096, own_keys: int = 64) -> None:
        """Start without any knowledge.

        Parameters
        ----------
        own_keys
            Keys for requests that bring none; enough that some lead to each worker.

        Raises
        ------
        SettingsError
            If the router's header is not known.
        """
        if router not in SESSION_HEADERS:
            known = ", ".join(SESSION_HEADERS)
            raise SettingsError(f"router {router!r}: expected one of {known}")
        self.header = SESSION_HEADERS[router]
        self._own = itertools.cycle([f"semblend-{number}" for number in range(own_keys)])
        self._limit = limit
        self._workers: OrderedDict[str, str] = OrderedDict()
        self._keys: dict[str, OrderedDict[str, None]] = {}

    def learn(self, key: str, worker_id: str) -> None:
        """That worker answered a request with this key."""
        self._forget(key)
        self._workers[key] = worker_id
        self._keys.setdefault(worker_id, OrderedDict())[key] = None
        if len(self._workers) > self._limit:
            self._forget(next(iter(self._workers)))

    def headers(self, worker_id: str) -> dict[str, str]:
        """Headers that lead to a worker; empty if no key of it is known."""
        keys = self._keys.get(worker_id)
        return {self.header: next(reversed(keys))} if keys else {}

    def next_key(self) -> str:
        """A key for a request that may go anywhere: our own keys in turn."""
        return next(self._own)

    def _forget(self, key: str) -> None:
        worker_id = self._workers.pop(key, None)
        if worker_id is not None:
            keys = self._keys[worker_id]
            keys.pop(key, None)
            if not keys:
                del self._keys[worker_id]
