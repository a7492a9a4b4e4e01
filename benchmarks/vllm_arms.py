"""vLLM in separate processes, with and without the connector, for benchmarks."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from functools import wraps
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.vllm_connector import llm_options

Tokens = npt.NDArray[np.int32]
NOTHING: dict[str, Callable[[], Any]] = {
    "on_new_request": lambda: None,
    "get_num_new_matched_tokens": lambda: (0, False),
    "update_state_after_alloc": lambda: None,
    "get_external_cache_hit_sources": dict,
    "build_connector_meta": lambda: _metadata(),
    "update_connector_output": lambda: None,
    "request_finished_all_groups": lambda: (False, None),
    "get_kv_connector_stats": lambda: None,
    "handle_preemptions": lambda: None,
    "start_load_kv": lambda: None,
    "wait_for_layer_load": lambda: None,
    "save_kv_layer": lambda: None,
    "wait_for_save": lambda: None,
    "get_finished": lambda: (None, None),
    "get_block_ids_with_load_errors": set,
    "build_connector_worker_meta": lambda: None,
}
"""Everything vLLM calls on the engine's thread for a request, and what a connector that does
nothing would return."""


class Arm:
    """One engine in its own process; `run` returns seconds and what was reused."""

    def __init__(self, model: str, *, connector: bool, threads: int) -> None:
        self._pipe, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(
            target=_serve, args=(theirs, model, connector, threads), daemon=True
        )
        self._process.start()
        if self._pipe.recv() != "ready":
            raise SystemExit("the engine did not start")

    def run(
        self, tokens: Tokens, hints: dict[str, Any] | None = None, *, off: bool = False
    ) -> dict[str, Any]:
        """One prefill, timed inside the engine's process; `off` switches the connector off."""
        self._pipe.send((tokens, hints, off))
        answer: dict[str, Any] = self._pipe.recv()
        return answer

    def close(self) -> None:
        self._pipe.send(None)
        self._process.join(timeout=30)


def _serve(pipe: Connection, model: str, connector: bool, threads: int) -> None:
    os.environ.update(
        {
            "HF_HUB_OFFLINE": "1",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_LOGGING_LEVEL": "ERROR",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": str(threads),
            "OMP_WAIT_POLICY": "passive",
        }
    )
    sys.stdout = sys.stderr  # standard output is for the report only
    from vllm import LLM, SamplingParams

    options: dict[str, Any] = {}
    if connector:
        options = llm_options({"mode": "segmented_experimental"})
    llm = LLM(
        model=model,
        dtype="float32",
        enforce_eager=True,
        skip_tokenizer_init=True,
        kv_cache_memory_bytes=768 << 20,
        **options,
    )
    core: Any = llm.llm_engine.engine_core.engine_core
    watched = Watched()
    if connector:
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        watched.watch(core.scheduler.connector)
        watched.watch(get_kv_transfer_group())
    pipe.send("ready")
    while (message := pipe.recv()) is not None:
        tokens, hints, watched.off = message
        extra = None if hints is None else {"kv_transfer_params": {"semblend": hints}}
        sampling = SamplingParams(
            max_tokens=1, temperature=0.0, ignore_eos=True, detokenize=False, extra_args=extra
        )
        watched.seconds = 0.0
        wall, cpu = time.perf_counter(), time.process_time()
        (output,) = llm.generate([{"prompt_token_ids": tokens.tolist()}], sampling, use_tqdm=False)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        called = watched.seconds
        said = (output.kv_transfer_params or {}).get("semblend", {}) if connector else {}
        behind = time.perf_counter()
        while connector and core.scheduler.has_requests():
            core.step_fn()  # as an engine that keeps running: captures end, blocks are freed
        behind = time.perf_counter() - behind
        pipe.send({"wall": wall, "cpu": cpu, "inside": called, "behind": behind, **said})


class Watched:
    """Times a connector's calls; switched off, they do nothing, as if it were absent."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.off = False

    def watch(self, connector: Any) -> None:
        """Wrap every call from now on."""
        for name, nothing in NOTHING.items():
            setattr(connector, name, self._timed(getattr(connector, name), nothing))

    def _timed(self, call: Callable[..., Any], nothing: Callable[[], Any]) -> Callable[..., Any]:
        @wraps(call)
        def timed(*arguments: Any, **named: Any) -> Any:
            if self.off:
                return nothing()
            started = time.perf_counter()
            try:
                return call(*arguments, **named)
            finally:
                self.seconds += time.perf_counter() - started

        return timed


def _metadata() -> Any:
    from semblend.integration.vllm.metadata import ConnectorMeta

    return ConnectorMeta()
