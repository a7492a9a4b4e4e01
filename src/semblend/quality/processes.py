"""Runs a job in several processes, each with its own lab. One process leaves a GPU idle."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import torch

from semblend.core.errors import StorageError
from semblend.engine.model import load_model
from semblend.kv.depth_drift import read_table
from semblend.quality.lab import Lab

POLL_SECONDS = 1.0
SLOTS = 131_072
"""Slots in each process's pool."""

Job = TypeVar("Job")


def run_processes(
    target: Callable[[Job, int], None],
    job: Job,
    *,
    processes: int,
    kept: Path,
    waiting: Callable[[], None],
) -> None:
    """Start `target(job, number)` in each process and wait, calling `waiting` meanwhile.

    Raises
    ------
    StorageError
        If a process failed. The results of the others are in `kept`.
    """
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=target, args=(job, number)) for number in range(processes)]
    for worker in workers:
        worker.start()
    running = list(workers)
    while running:
        running[0].join(POLL_SECONDS)
        running = [worker for worker in running if worker.exitcode is None]
        waiting()
    failed = [number for number, worker in enumerate(workers) if worker.exitcode]
    if failed:
        raise StorageError(
            f"processes {failed} of {processes} failed; their own messages are above, "
            f"what the others did is in {kept}"
        )


@contextmanager
def lab_of_process(model: str, *, device: str, dtype: str, drift: Path | None) -> Iterator[Lab]:
    """A lab for this process only."""
    torch.set_num_threads(1)
    # float32 must mean the same on every device, or certificates would not be portable.
    torch.backends.cuda.matmul.allow_tf32 = False
    table = None if drift is None else read_table(drift)
    loaded = load_model(model, device=device, dtype=dtype)
    lab = Lab(loaded, capacity_tokens=SLOTS, drift=table)
    try:
        yield lab
    finally:
        lab.close()
