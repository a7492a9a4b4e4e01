"""Ranks as threads: the collectives of `tensorrt_llm._utils`, for tests on one machine."""

from __future__ import annotations

import pickle
import sys
import threading
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from tests.integration.trtllm.generations import salt_number


class Ranks:
    """`count` threads that can gather; `on_all` runs a function on each of them."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.gathers = 0
        self._local = threading.local()
        self._barrier = threading.Barrier(count, timeout=60)
        self._values: list[Any] = [None] * count
        self._threads = [ThreadPoolExecutor(max_workers=1) for _ in range(count)]
        for rank, thread in enumerate(self._threads):
            thread.submit(setattr, self._local, "rank", rank).result()

    def rank(self) -> int:
        return getattr(self._local, "rank", 0)

    def all_gather(self, value: Any) -> list[Any]:
        self._values[self.rank()] = pickle.dumps(value)
        self._barrier.wait()
        everybody = [pickle.loads(one) for one in self._values]
        self._barrier.wait()
        if self.rank() == 0:
            self.gathers += 1
        return everybody

    def broadcast(self, value: Any, root: int = 0) -> Any:
        return self.all_gather(value)[root]

    def on_all(self, work: Callable[[int], Any]) -> list[Any]:
        futures = [thread.submit(work, rank) for rank, thread in enumerate(self._threads)]
        return [future.result(timeout=120) for future in futures]

    def on(self, rank: int, work: Callable[[], Any]) -> Any:
        return self._threads[rank].submit(work).result(timeout=120)

    def close(self) -> None:
        for thread in self._threads:
            thread.shutdown()


@contextmanager
def stub_modules(ranks: Ranks) -> Iterator[dict[str, types.ModuleType]]:
    """`tensorrt_llm` with nothing but collectives and the salts' numbering in it."""
    utilities = types.ModuleType("tensorrt_llm._utils")
    utilities.mpi_rank = ranks.rank
    utilities.mpi_allgather = ranks.all_gather
    utilities.mpi_broadcast = ranks.broadcast
    inputs = types.ModuleType("tensorrt_llm.inputs.utils")
    inputs.get_cache_salt_id = salt_number
    modules = {
        "tensorrt_llm": types.ModuleType("tensorrt_llm"),
        "tensorrt_llm._utils": utilities,
        "tensorrt_llm.inputs": types.ModuleType("tensorrt_llm.inputs"),
        "tensorrt_llm.inputs.utils": inputs,
    }
    before = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    try:
        yield modules
    finally:
        for name, module in before.items():
            if module is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module
