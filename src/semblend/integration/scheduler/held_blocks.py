"""Blocks of finished requests that wait for a capture or a sample."""

from __future__ import annotations

from collections.abc import Iterable

from semblend.integration.scheduler.port import EngineRequest


class HeldBlocks:
    """The requests whose blocks the engine keeps for us, and how it gets them back."""

    def __init__(self) -> None:
        self._requests: dict[str, EngineRequest] = {}
        self._new: list[str] = []
        self._let_go: list[str] = []

    def __bool__(self) -> bool:
        return bool(self._requests)

    def hold(self, request_id: str, handle: EngineRequest) -> None:
        """A request ends while its blocks are still being read."""
        self._requests[request_id] = handle
        self._new.append(request_id)

    def freed(self, request_ids: Iterable[str]) -> None:
        """The workers have finished reading; the engine frees the blocks now."""
        for request_id in request_ids:
            self._requests.pop(request_id, None)

    def let_go(self, reading: Iterable[str] = ()) -> None:
        """Return all of them at once.

        What is still being copied stays readable until the next step, whose workers end the copy
        before they overwrite anything, as they do for a preempted request. `reading` are those
        whose blocks are copied, also out of blocks that somebody else returns.
        """
        self._let_go += reading
        for request_id, handle in self._requests.items():
            handle.free_blocks()  # once more when the workers answer: then it has none
            self._let_go.append(request_id)
        self._requests.clear()

    def take_new(self) -> list[str]:
        """Requests held since the last call, for the workers."""
        new, self._new = self._new, []
        return new

    def take_let_go(self) -> list[str]:
        """Requests whose blocks are overwritten from the next step on, for the workers."""
        gone, self._let_go = self._let_go, []
        return gone
