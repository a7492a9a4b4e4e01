"""Engines for tests: the adapter itself, a manager, the simulated executor and a real model."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from semblend.integration.desk_climb import LadderAnswer
from semblend.integration.trtllm.ladder_client import LadderLLM
from semblend.integration.trtllm.options import VARIABLE
from semblend.integration.trtllm.worker_side import TrtWorkerSide
from semblend.integration.worker.loads_in_flight import wait_for
from tests.integration.models import folder_of, plain_model
from tests.integration.trtllm.executor import Executor, SimulatedLLM
from tests.integration.trtllm.generations import NEWER, Generation, salt_number
from tests.integration.trtllm.managers import SimulatedManager
from tests.integration.trtllm.ranks import Ranks, stub_modules

BLOCK = 16


def llm_args(folder: str, *, ranks: int = 1, **changes: Any) -> SimpleNamespace:
    """What the adapter reads of TorchLlmArgs."""
    cache = SimpleNamespace(
        tokens_per_block=BLOCK,
        dtype="auto",
        max_attention_window=None,
        sink_token_length=None,
        enable_block_reuse=True,
        use_kv_cache_manager_v2=False,
    )
    values = {
        "model": folder,
        "revision": None,
        "tokenizer": None,
        "dtype": "float32",
        "quant_config": SimpleNamespace(quant_algo=None, kv_cache_quant_algo=None),
        "kv_cache_config": cache,
        "tensor_parallel_size": ranks,
        "pipeline_parallel_size": 1,
        "context_parallel_size": 1,
        "max_beam_width": 1,
        "enable_attention_dp": False,
        "enable_lora": False,
        "lora_config": None,
        "speculative_config": None,
        "sparse_attention_config": None,
        "cache_transceiver_config": None,
    }
    for name, value in changes.items():
        if name == "kv_cache_dtype":
            cache.dtype = value
        elif name != "dtype" and name in vars(cache):
            setattr(cache, name, value)
        else:
            values[name] = value
    return SimpleNamespace(**values)


def wait_for_copies(side: TrtWorkerSide) -> None:
    """Wait for all copies that are under way on a rank."""
    if side.parts is not None:
        side.parts.captures.wait()
        wait_for([load for load, _ in side._parked])


@dataclass
class Engine:
    """One engine with the adapter in it."""

    executor: Executor
    manager: Any
    scheduler: Any
    workers: list[Any]
    ranks: Ranks
    audit_path: Path

    def run(self, prompt: Any, **options: Any) -> Any:
        """Serve a prompt; everything that it leaves to be copied is copied."""
        request = self.executor.run(prompt, **options)
        self.settle()
        return request

    def settle(self) -> None:
        """Copies are made, transfers have ended, and the leader has heard of it."""
        for worker in self.workers:
            wait_for_copies(worker.side)
        self.executor.drain()
        self.hear()

    def hear(self) -> None:
        """The leader hears of the copies that are under way; requests go on."""
        for worker in self.workers:
            wait_for_copies(worker.side)
        self.executor.step()
        self.scheduler.side.settle()

    async def ladder(
        self, prompt: Any, *, cache_salt: str | None = None, max_tokens: int = 4
    ) -> LadderAnswer:
        """Serve a prompt as a ladder."""
        client = LadderLLM(SimulatedLLM(self.executor), self.scheduler.side, salt_id=salt_number)
        return await client.generate(
            prompt, SimpleNamespace(max_tokens=max_tokens), cache_salt=cache_salt
        )

    @property
    def ledger(self) -> Any:
        return self.scheduler.side.planner.pipeline.ledger

    def records(self, name: str | None = None) -> list[dict[str, Any]]:
        """The audit stream so far."""
        self.scheduler.side.audit.flush()
        lines = self.audit_path.read_text(encoding="utf-8").splitlines()
        records = [json.loads(line) for line in lines]
        return [one for one in records if name is None or one["event"] == name]


class Maker:
    """Makes engines and closes them."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, folder: Path, *, stubs: bool = True
    ) -> None:
        """`stubs` puts collectives in place of TensorRT-LLM's; not where others already are."""
        self._stubs = stubs
        self._monkeypatch = monkeypatch
        self._folder = folder
        self._stack: list[Any] = []
        self._count = 0

    def __call__(
        self,
        model: str = "llama",
        *,
        generation: Generation = NEWER,
        ranks: int = 1,
        options: dict[str, Any] | None = None,
        args: dict[str, Any] | None = None,
        manager: Any = SimulatedManager,
        connector: Any = None,
        **executor: Any,
    ) -> Engine:
        self._count += 1
        audit = self._folder / f"audit-{self._count}.jsonl"
        values = {
            "mode": "segmented_experimental",
            "min_prompt_tokens": 32,
            "recompute_policy": "none",
            "audit_path": str(audit),
            **(options or {}),
        }
        self._monkeypatch.setenv(VARIABLE, json.dumps(values))
        if connector is None:
            from semblend.integration.trtllm import connector
        threads = Ranks(ranks)
        stubs = stub_modules(threads) if self._stubs else nullcontext()
        stubs.__enter__()
        if not self._stubs:
            utilities = sys.modules["tensorrt_llm._utils"]
            utilities.mpi_rank = threads.rank  # type: ignore[attr-defined]
            utilities.mpi_allgather = threads.all_gather  # type: ignore[attr-defined]
        given = llm_args(folder_of(model), ranks=ranks, **(args or {}))
        scheduler = threads.on(0, lambda: connector.SemBlendKvConnectorScheduler(given))
        # The leader's worker has the scheduler's very arguments; others are other processes.
        workers = threads.on_all(
            lambda rank: connector.SemBlendKvConnectorWorker(
                given if rank == 0 else llm_args(folder_of(model), ranks=ranks, **(args or {}))
            )
        )
        made = manager(scheduler, workers, threads, generation)
        loop = Executor(
            plain_model(model),
            generation=generation,
            manager=made,
            block_size=given.kv_cache_config.tokens_per_block,
            ranks=ranks,
            **executor,
        )
        for rank, worker in enumerate(workers):
            worker.register_kv_caches(loop.paged.pools[rank])
        self._stack.append((stubs, scheduler, workers, threads))
        return Engine(
            executor=loop,
            manager=made,
            scheduler=scheduler,
            workers=workers,
            ranks=threads,
            audit_path=audit,
        )

    def close(self) -> None:
        for stubs, scheduler, workers, threads in reversed(self._stack):
            scheduler.shutdown()
            for worker in workers:
                worker.shutdown()
            threads.close()
            stubs.__exit__(None, None, None)


def cold(model: str, prompt: Any, *, max_new_tokens: int = 4, **options: Any) -> Any:
    """The same prompt in an engine without a connector."""
    engine = Executor(plain_model(model), generation=NEWER, block_size=BLOCK, **options)
    return engine.run(prompt, max_new_tokens=max_new_tokens)


@contextmanager
def making(monkeypatch: pytest.MonkeyPatch, folder: Path, *, stubs: bool = True) -> Iterator[Maker]:
    maker = Maker(monkeypatch, folder, stubs=stubs)
    try:
        yield maker
    finally:
        maker.close()
