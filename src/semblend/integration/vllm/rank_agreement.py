"""What tensor-parallel ranks must agree on: passes use collectives, so all run them or none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


class TensorParallelRanks:
    """This rank among those of one model. Every rank makes the same calls in the same order."""

    def __init__(self, config: Any) -> None:
        self._count = int(config.parallel_config.tensor_parallel_size)

    def all_true(self, flags: Sequence[bool]) -> list[bool]:
        """Which of the flags are true on every rank."""
        if self._count == 1:
            return list(flags)
        agreed = torch.tensor(list(flags), dtype=torch.int32)
        torch.distributed.all_reduce(agreed, op=torch.distributed.ReduceOp.MIN, group=_host_group())
        return [bool(flag) for flag in agreed.tolist()]

    def summed(self, values: torch.Tensor) -> torch.Tensor:
        """Sum a host tensor over the ranks, in place."""
        if self._count > 1:
            torch.distributed.all_reduce(values, group=_host_group())
        return values


def _host_group() -> Any:
    from vllm.distributed.parallel_state import get_tp_group

    return get_tp_group().cpu_group
