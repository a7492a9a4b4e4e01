"""Decides when an endpoint is gone: after too many failures in a row the run stops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from sembench.errors import EndpointError


class Measured(Protocol):
    """The part of a row that this module looks at."""

    @property
    def error(self) -> str | None:
        """Why there is no measurement; None if there is one."""
        ...


Row = TypeVar("Row", bound=Measured)


class HeldFailures(Generic[Row]):
    """Passes rows to `write`, but holds failures until a success shows the endpoint is up.

    Failures still held when the run stops are never written, so a resumed run measures
    them again. A `limit` of 0 never gives up.
    """

    def __init__(self, write: Callable[[Row], None], *, limit: int) -> None:
        self._write = write
        self._limit = limit
        self._held: list[Row] = []
        self._answered = False

    def add(self, row: Row) -> None:
        """Add one row, in the order rows come back.

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
                f"{len(self._held)} requests in a row failed; last error: {row.error}. "
                f"Continue with --resume when the endpoint is back"
            )

    def flush(self) -> None:
        """End the run: write the held failures, unless nothing was answered at all.

        Raises
        ------
        EndpointError
            If there were rows and none was answered; a `limit` of 0 allows that.
        """
        if self._held and not self._answered and self._limit:
            raise EndpointError(
                f"none of {len(self._held)} requests was answered; last error: "
                f"{self._held[-1].error}. Continue with --resume when the endpoint is up"
            )
        for row in self._held:
            self._write(row)
        self._held.clear()
