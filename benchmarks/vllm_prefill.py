"""Prefill in real vLLM: with the connector against without it, on the same prompts.

    .venv-vllm/bin/python -m benchmarks.vllm_prefill [--model random] [--rounds 3] [--json]

Two engines run side by side, one process each: plain vLLM, and vLLM with the
connector. They take turns, so that whatever else the machine does hits both; each
figure is a ratio of the two arms' best rounds. fp32, greedy, one output token, CPU.
Prefix caching is on in both. Every round has a new instruction and a new question
around documents that the connector's engine has seen before, behind others.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from semblend.cli.benchmark_report import BenchmarkReport

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "models" / "semblend-reference-27m"
INSTRUCTION_TOKENS, QUESTION_TOKENS = 200, 64
Tokens = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One kind of prompt: what the donor said, what recomputes, and the target."""

    name: str
    documents: tuple[int, ...]
    """Tokens of each document; the donor holds them in order, prompts shuffle them."""
    policy: str
    at_least: float


def cases(longest: int) -> list[Case]:
    """The table of the issue, cut to what fits the model's context."""
    around = INSTRUCTION_TOKENS + QUESTION_TOKENS
    eight = min(8192, longest - 2) - around
    return [
        Case(name="4K, no recompute", documents=(4096 - around,), policy="none", at_least=12.0),
        Case(name="8K, no recompute", documents=(eight,), policy="none", at_least=20.0),
        Case(name="8K, 10 % recompute", documents=(eight,), policy="random(0.1)", at_least=5.0),
        Case(
            name="10 shuffled documents of 700",
            documents=(700,) * 10,
            policy="span_head(32)",
            at_least=6.0,
        ),
    ]


class Arm:
    """One engine in a process of its own; `run` answers with seconds and what was reused."""

    def __init__(self, model: str, *, connector: bool, threads: int) -> None:
        self._pipe, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(
            target=_serve, args=(theirs, model, connector, threads), daemon=True
        )
        self._process.start()
        if self._pipe.recv() != "ready":
            raise SystemExit("the engine did not start")

    def run(self, tokens: Tokens, hints: dict[str, Any] | None = None) -> dict[str, Any]:
        """One prefill, timed inside the engine's process."""
        self._pipe.send((tokens, hints))
        answer: dict[str, Any] = self._pipe.recv()
        return answer

    def close(self) -> None:
        """Stop the process."""
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
            # vLLM accepts a region that ends inside a block; a block here is 128 tokens.
            "SEMBLEND_STRICT_PREFIX_BOUNDARY": "0",
        }
    )
    sys.stdout = sys.stderr  # the report alone goes to standard output
    from vllm import LLM, SamplingParams
    from vllm.config import KVTransferConfig

    options: dict[str, Any] = {}
    if connector:
        options = {
            "worker_cls": "semblend.integration.vllm.worker.SemBlendWorker",
            "kv_transfer_config": KVTransferConfig(
                kv_connector="SemBlendConnectorV1",
                kv_connector_module_path="semblend.integration.vllm.connector_v1",
                kv_role="kv_both",
                kv_load_failure_policy="recompute",
                kv_connector_extra_config={"mode": "segmented_experimental"},
            ),
        }
    llm = LLM(
        model=model,
        dtype="float32",
        enforce_eager=True,
        skip_tokenizer_init=True,
        kv_cache_memory_bytes=768 << 20,
        **options,
    )
    core: Any = llm.llm_engine.engine_core.engine_core
    pipe.send("ready")
    while (message := pipe.recv()) is not None:
        tokens, hints = message
        extra = None if hints is None else {"kv_transfer_params": {"semblend": hints}}
        sampling = SamplingParams(
            max_tokens=1, temperature=0.0, ignore_eos=True, detokenize=False, extra_args=extra
        )
        wall, cpu = time.perf_counter(), time.process_time()
        (output,) = llm.generate([{"prompt_token_ids": tokens.tolist()}], sampling, use_tqdm=False)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        said = (output.kv_transfer_params or {}).get("semblend", {}) if connector else {}
        while connector and core.scheduler.has_requests():
            core.step_fn()  # what an engine that goes on does: captures end, blocks are freed
        pipe.send({"wall": wall, "cpu": cpu, **said})


class Prompts:
    """Random texts of a model's vocabulary."""

    def __init__(self, vocabulary: int, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._vocabulary = vocabulary

    def text(self, tokens: int) -> Tokens:
        """So many tokens."""
        return self._random.integers(10, self._vocabulary, tokens).astype(np.int32)

    def around(self, documents: list[Tokens]) -> Tokens:
        """A new instruction, the documents, a new question."""
        parts = [self.text(INSTRUCTION_TOKENS), *documents, self.text(QUESTION_TOKENS)]
        return np.concatenate(parts)

    def shuffled(self, documents: list[Tokens]) -> list[Tokens]:
        """The documents in another order."""
        return [documents[index] for index in self._random.permutation(len(documents))]


def measure_hit(
    case: Case, plain: Arm, reusing: Arm, prompts: Prompts, rounds: int
) -> tuple[float, float, float]:
    """Speedup by wall clock and by CPU time, and the reused share of the prompt."""
    documents = [prompts.text(tokens) for tokens in case.documents]
    reusing.run(prompts.around(documents), {"reuse": False})
    best: dict[str, dict[str, float]] = {"cold": {}, "warm": {}}
    share = 0.0
    for _ in range(rounds):
        prompt = prompts.around(prompts.shuffled(documents))
        cold = plain.run(prompt)
        warm = reusing.run(prompt, {"policy": case.policy, "capture": False})
        if warm.get("outcome") != "materialised":
            raise SystemExit(f"{case.name}: nothing was reused: {warm}")
        share = warm["reused_tokens"] / len(prompt)
        for arm, answer in (("cold", cold), ("warm", warm)):
            for clock in ("wall", "cpu"):
                best[arm][clock] = min(best[arm].get(clock, np.inf), answer[clock])
    wall = best["cold"]["wall"] / best["warm"]["wall"]
    return wall, best["cold"]["cpu"] / best["warm"]["cpu"], share


def measure_miss(plain: Arm, reusing: Arm, prompts: Prompts, rounds: int) -> tuple[float, float]:
    """Overhead of the connector on prompts it has never seen, capture on: best and median."""
    walls: dict[str, list[float]] = {"plain": [], "reusing": []}
    for _ in range(rounds):
        for name, arm in (("plain", plain), ("reusing", reusing)):
            walls[name].append(arm.run(prompts.text(4096))["wall"])
    best = min(walls["reusing"]) / min(walls["plain"]) - 1.0
    middle = float(np.median(walls["reusing"]) / np.median(walls["plain"])) - 1.0
    return best, middle


def random_model(folder: Path) -> str:
    """A Qwen2 of 38 million parameters with random weights."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        vocab_size=16384,
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=12,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=16384,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = transformers.Qwen2ForCausalLM(config)
    model.save_pretrained(folder)
    return str(folder)


def measure(name: str, report: BenchmarkReport, *, rounds: int, threads: int) -> None:
    """All cases of one model."""
    with tempfile.TemporaryDirectory() as folder:
        reference = name == "reference"
        model = str(REFERENCE) if reference else random_model(Path(folder))
        plain = Arm(model, connector=False, threads=threads)
        reusing = Arm(model, connector=True, threads=threads)
        prompts = Prompts(16384, seed=1)
        warm_up = prompts.text(1024)
        plain.run(warm_up)
        reusing.run(warm_up, {"reuse": False, "capture": False})
        for case in cases(8192 if reference else 16384):
            wall, cpu, share = measure_hit(case, plain, reusing, prompts, rounds)
            label = f"{name}: {case.name}"
            report.add(label, "prefill speedup", wall, "x", at_least=case.at_least)
            report.add(label, "prefill speedup, CPU time", cpu, "x")
            report.add(label, "reused share of the prompt", share, "")
        best, middle = measure_miss(plain, reusing, prompts, 2 * rounds)
        label = f"{name}: 4K miss, capture on"
        report.add(label, "overhead, best rounds", 100 * best, "%", at_most=2.0)
        report.add(label, "overhead, median rounds", 100 * middle, "%")
        plain.close()
        reusing.close()


def main() -> None:
    """Measure, print, and fail if a target is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", choices=("both", "reference", "random"), default="both")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    report = BenchmarkReport(
        benchmark="vllm_prefill",
        command=" ".join(["python -m benchmarks.vllm_prefill", *sys.argv[1:]]),
    )
    for name in ("reference", "random") if arguments.model == "both" else (arguments.model,):
        measure(name, report, rounds=arguments.rounds, threads=arguments.threads)
    report.show(as_json=arguments.json)
    if report.failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
