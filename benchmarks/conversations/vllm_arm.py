"""vLLM as an arm: each engine in a process of its own, so that one does nothing while another runs.

The arm with SemBlend serves the model under its certificate. The others are vLLM without any
connector.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.conversations.arms import POOL_TOKENS, Arm, Reply, Usage
from benchmarks.vllm_connector import llm_options
from semblend.core.tokens import TokenArray

BLOCK = 32
"""The smallest that vLLM's attention on CPUs takes."""


class Vllm:
    """One engine in a child process."""

    block_size = BLOCK

    def __init__(self, folder: str, *, reuses: bool, pool_tokens: int) -> None:
        self._pipe, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        arguments = (theirs, folder, reuses, pool_tokens)
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        theirs.close()

    def wait(self) -> None:
        """Wait until the engine has started."""
        try:
            self._pipe.recv()
        except EOFError:
            raise SystemExit("vLLM did not start") from None

    def ask(self, prompt: TokenArray, *, tokens: int, full: bool) -> Reply:
        self._pipe.send(("ask", prompt, tokens, full))
        reply: Reply = self._pipe.recv()
        return reply

    def settle(self, *, idle: bool) -> None:
        self._pipe.send(("settle", idle))
        self._pipe.recv()

    def usage(self) -> Usage:
        self._pipe.send(("usage",))
        usage: Usage = self._pipe.recv()
        return usage

    def close(self) -> None:
        self._pipe.send(None)
        self._process.join(timeout=30)


def vllm_arms(
    folder: str, names: tuple[str, ...], *, pool_tokens: int = POOL_TOKENS
) -> dict[str, Arm]:
    """One engine for each name; the first has SemBlend."""
    arms = {name: Vllm(folder, reuses=name == names[0], pool_tokens=pool_tokens) for name in names}
    for arm in arms.values():
        arm.wait()
    return dict(arms)


def _serve(pipe: Connection, folder: str, reuses: bool, pool_tokens: int) -> None:
    os.environ.update(
        {
            "HF_HUB_OFFLINE": "1",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_LOGGING_LEVEL": "ERROR",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "1",
            "OMP_WAIT_POLICY": "passive",
            "SEMBLEND_SHADOW_RATE": "0",
            "SEMBLEND_EMBEDDER": "none",
        }
    )
    sys.stdout = sys.stderr  # standard output is for the report only
    served = _Served(folder, reuses=reuses, pool_tokens=pool_tokens)
    pipe.send("ready")
    while (message := pipe.recv()) is not None:
        what, *arguments = message
        pipe.send(getattr(served, what)(*arguments))


class _Served:
    """The engine, inside its process."""

    def __init__(self, folder: str, *, reuses: bool, pool_tokens: int) -> None:
        from transformers import AutoConfig
        from vllm import LLM

        options: dict[str, Any] = {}
        if reuses:
            options = llm_options({"mode": "segmented"})
        model = AutoConfig.from_pretrained(folder)
        head = getattr(model, "head_dim", None) or model.hidden_size // model.num_attention_heads
        token_bytes = 2 * 4 * model.num_hidden_layers * model.num_key_value_heads * head
        self._reuses = reuses
        self._serial = 0
        self._promoted = 0
        self._llm = LLM(
            model=folder,
            dtype="float32",
            enforce_eager=True,
            block_size=BLOCK,
            kv_cache_memory_bytes=pool_tokens * token_bytes,
            disable_log_stats=True,
            **options,
        )
        self._core: Any = self._llm.llm_engine.engine_core.engine_core
        self._side: Any = None
        if reuses:
            self._side = self._core.scheduler.connector.scheduler_side
            count = self._side.stats.count

            def counted(name: str, amount: int = 1) -> None:
                self._promoted += amount if name == "promoted_tokens" else 0
                count(name, amount)

            self._side.stats.count = counted

    def ask(self, prompt: TokenArray, tokens: int, full: bool) -> Reply:
        from vllm import SamplingParams

        self._serial += 1
        sampling = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=full)
        engine: Any = self._llm.llm_engine
        wall, cpu = time.perf_counter(), time.process_time()
        engine.add_request(f"r{self._serial}", {"prompt_token_ids": prompt.tolist()}, sampling)
        first, last = None, None
        while engine.has_unfinished_requests():
            for output in engine.step():
                last = output
                if first is None and output.outputs[0].token_ids:
                    first = time.perf_counter() - wall, time.process_time() - cpu
        if first is None or last is None:
            raise RuntimeError("vLLM gave no answer")
        computed = len(prompt) - int(last.num_cached_tokens or 0)
        if self._reuses:
            said = last.kv_transfer_params["semblend"]
            placed = said["exact_tokens"] + said["continued_tokens"] + said["reused_tokens"]
            computed = len(prompt) - placed
        return Reply(
            tokens=tuple(last.outputs[0].token_ids),
            computed=computed,
            seconds=first[0],
            cpu=first[1],
        )

    def settle(self, idle: bool) -> None:
        """Step on as an engine that serves others does; what is pending ends."""
        promotions = None
        if self._side is not None and not idle:
            promotions, self._side.promotions = self._side.promotions, None
        for _ in range(3):
            self._core.step_fn()
        while self._core.scheduler.has_requests():
            self._core.step_fn()
        if promotions is not None:
            self._side.promotions = promotions

    def usage(self) -> Usage:
        if self._side is None or self._side.chains is None:
            return Usage()
        total = self._core.scheduler.kv_cache_manager.block_pool.num_gpu_blocks
        return Usage(promoted_tokens=self._promoted, chain_share=self._side.chains.blocks / total)
