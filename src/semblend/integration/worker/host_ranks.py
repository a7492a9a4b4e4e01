"""Ranks of tensor parallelism, which speak over a process group on the host.

Passes use collectives, so all ranks run one or none does.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from semblend.core.errors import SemBlendError

_WELL = 0


class RanksPartError(SemBlendError, RuntimeError):
    """Another rank has failed, or has decided something else."""


class HostRanks:
    """This rank among those of one model. Every rank makes the same calls in the same order."""

    def __init__(self, group: Any = None) -> None:
        """`group` is a process group on the host; None is one rank alone."""
        self._group = group
        self.count = 1 if group is None else int(torch.distributed.get_world_size(group))
        self.rank = 0 if group is None else int(torch.distributed.get_rank(group))

    def all_true(self, flags: Sequence[bool]) -> list[bool]:
        """Which of the flags are true on every rank."""
        if self.count == 1:
            return list(flags)
        there = torch.tensor(flags, dtype=torch.int32)
        torch.distributed.all_reduce(there, torch.distributed.ReduceOp.MIN, group=self._group)
        return [bool(flag) for flag in there.tolist()]

    def summed(self, values: torch.Tensor) -> torch.Tensor:
        """A tensor on the host, summed over the ranks in place."""
        if self.count > 1:
            torch.distributed.all_reduce(values, group=self._group)
        return values


class MeetingRanks(HostRanks):
    """Ranks with a scheduler each.

    Such schedulers are not told what to do: they see the same requests, caches and slots, and so
    decide alike. A load that fails on one rank alone would part them for good, and a pass that one
    rank does not run would leave the others waiting in it. So before anything that all must do
    together the ranks meet here, and a rank that has failed says so at the next meeting.
    """

    def summed(self, values: torch.Tensor) -> torch.Tensor:
        """The same, once all ranks are well."""
        self.meet()
        return super().summed(values)

    def agree(self, what: object) -> bool:
        """Whether every rank means the same, compared by how it is written."""
        return self._same(zlib.crc32(repr(what).encode()))

    def meet(self) -> None:
        """All ranks are here, and well.

        Raises
        ------
        RanksPartError
            If one of them is not.
        """
        if not self._same(_WELL):
            raise RanksPartError("another rank has failed")

    @contextmanager
    def together(self) -> Iterator[None]:
        """A stretch in which ranks meet: what fails on one rank fails on all.

        Errors of one type on every rank stay what they are; else all ranks raise the same.

        Raises
        ------
        RanksPartError
            If this rank or another has failed alone.
        """
        try:
            yield
        except RanksPartError:
            raise
        except Exception as error:
            kind = 1 + zlib.crc32(type(error).__name__.encode())
            if not self._same(kind):
                raise RanksPartError(f"this rank has failed alone: {error!r}") from error
            raise

    def _same(self, value: int) -> bool:
        if self.count == 1:
            return True
        both = torch.tensor([value, -value], dtype=torch.int64)
        torch.distributed.all_reduce(both, torch.distributed.ReduceOp.MAX, group=self._group)
        most, least = int(both[0]), -int(both[1])
        return most == least
