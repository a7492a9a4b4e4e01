"""What the card can do, measured in the same run, and how things are timed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import triton  # type: ignore[import-untyped,import-not-found,unused-ignore]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured figure and its target; a target of None means information only."""

    case: str
    metric: str
    value: float
    unit: str
    target: float | None = None
    ok: bool = True


def at_most(case: str, metric: str, value: float, limit: float, unit: str = "ratio") -> Figure:
    """A figure that must not exceed `limit`."""
    return Figure(
        case=case, metric=metric, value=value, unit=unit, target=limit, ok=bool(value <= limit)
    )


def at_least(case: str, metric: str, value: float, limit: float, unit: str = "ratio") -> Figure:
    """A figure that must reach `limit`."""
    return Figure(
        case=case, metric=metric, value=value, unit=unit, target=limit, ok=bool(value >= limit)
    )


def info(case: str, metric: str, value: float, unit: str) -> Figure:
    """A figure without a target."""
    return Figure(case=case, metric=metric, value=value, unit=unit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """Bytes and operations per second."""

    copy: float
    """Device to device, bytes read plus bytes written."""
    matrix: float
    """A bf16 product of 8192 x 8192 x 8192, random numbers."""
    to_device: float
    """From pinned host memory."""

    def figures(self) -> list[Figure]:
        """The ceilings as figures of the report."""
        name = torch.cuda.get_device_name()
        return [
            info(name, "copy_bandwidth", self.copy / 1e12, "TB/s"),
            info(name, "matrix_rate", self.matrix / 1e12, "TFLOP/s"),
            info(name, "host_to_device", self.to_device / 1e9, "GB/s"),
        ]


def measure_ceilings() -> Ceilings:
    """Measure all three, as medians."""
    source = torch.randn(1 << 29, device="cuda")
    target = torch.empty_like(source)
    copy = 2 * source.nbytes / kernel_s(lambda: target.copy_(source))
    host = torch.empty(1 << 28, dtype=torch.float32, pin_memory=True).normal_()
    to_device = host.nbytes / kernel_s(lambda: target[: 1 << 28].copy_(host, non_blocking=True))
    a = torch.randn(8192, 8192, device="cuda").bfloat16()
    b = torch.randn(8192, 8192, device="cuda").bfloat16()
    # Under sustained load the card lowers its clocks; a first burst is not a sustainable rate.
    matrix = 2 * 8192**3 / kernel_s(lambda: a @ b, warm=500, rep=300)
    return Ceilings(copy=copy, matrix=matrix, to_device=to_device)


def kernel_s(run: Callable[[], object], rep: int = 100, warm: int = 25) -> float:
    """Median seconds of device work, caches cleared before each; `rep` and `warm` in ms."""
    return float(triton.testing.do_bench(run, warmup=warm, rep=rep, return_mode="median")) * 1e-3


def wall_s(run: Callable[[], object], repeats: int = 5, warm_s: float = 0.15) -> float:
    """Median seconds from call to finished work, including the host's."""
    return float(np.median(wall_times(run, repeats, warm_s)))


def wall_times(run: Callable[[], object], repeats: int, warm_s: float = 0.15) -> list[float]:
    """Seconds of several calls, after warm-up calls.

    Warm-up lasts a while and at least three runs: an idle card takes time to reach its
    clocks, and a graph is recorded when its size is seen again.
    """
    started, runs = time.perf_counter(), 0
    while runs < 3 or time.perf_counter() - started < warm_s:
        run()
        runs += 1
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        started = time.perf_counter()
        run()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return times


def profile(run: Callable[[], object], top: int = 14) -> list[dict[str, Any]]:
    """Device time of one run by kernel name, longest first."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    run()
    torch.cuda.synchronize()
    with record(activities=[ProfilerActivity.CUDA]) as recorded:
        run()
        torch.cuda.synchronize()
    rows = [
        {"kernel": event.key[:90], "calls": event.count, "ms": event.device_time_total / 1e3}
        for event in recorded.key_averages()
        if event.device_time_total > 0
    ]
    return sorted(rows, key=lambda row: -float(row["ms"]))[:top]
