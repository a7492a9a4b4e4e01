"""When a run takes its endpoint for gone: so many failures in a row, and it stops resumably."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from sembench.errors import EndpointError


class Measured(Protocol):
    """A row of a run, as far as this module looks at it."""

    @property
    def error(self) -> str | None:
        """Why there is no measurement; None where there is one."""
        ...


Row = TypeVar("Row", bound=Measured)


class HeldFailures(Generic[Row]):
    """Passes rows on to `write`; failures wait until a success shows that the endpoint is there.

    Failures that are still held when the run stops were never written, so that a
    resumed run measures them. `limit` 0 never gives up.
    """

    def __init__(self, write: Callable[[Row], None], *, limit: int) -> None:
        self._write = write
        self._limit = limit
        self._held: list[Row] = []
        self._answered = False

    def add(self, row: Row) -> None:
        """Take one row in the order they come back.

        Raises
        ------
        EndpointError
            With the last failure, once `limit` requests in a row have failed.
        """
        self._held.append(row)
        if row.error is None:
            self._answered = True
            self.flush()
        elif 0 < self._limit <= len(self._held):
            raise EndpointError(
                f"{len(self._held)} requests in a row failed, the last with: {row.error}. "
                f"Take the run up with --resume when the endpoint is back"
            )

    def flush(self) -> None:
        """The run is over: what is held are failures like any other, unless there was nothing else.

        Raises
        ------
        EndpointError
            If rows were taken and not one was answered; a `limit` of 0 allows that.
        """
        if self._held and not self._answered and self._limit:
            raise EndpointError(
                f"none of {len(self._held)} requests was answered, the last with: "
                f"{self._held[-1].error}. Take the run up with --resume when the endpoint is there"
            )
        for row in self._held:
            self._write(row)
        self._held.clear()
