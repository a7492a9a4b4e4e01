"""Time to the first token inside vLLM on a GPU: cold, misses and hits, alone and under load.

    python -m benchmarks.vllm_gpu --make-model FOLDER     random weights, Qwen2.5-7B's shape, 15 GB
    python -m benchmarks.vllm_gpu --model FOLDER --json   all rows, about four minutes

One engine with vLLM's own defaults and donors in host memory. Cold, miss and hit are measured in
the same engine, so their ratios come from one run. Without a GPU it uses a small model in
float32, which tests the program and says nothing about speed.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.vllm_runners import on_gpu
from semblend.bench.benchmark_report import BenchmarkReport

OFF = {"reuse": False, "capture": False}
DONATE = {"reuse": False}
LOOKING = (
    "budget(edit_dependents(1, 8) + span_head(8) + query_attention(0.05, 16, 'displaced'), 0.15)"
)
POLICIES = ("none", "span_head(32)", "random(0.05)", "random(0.15)", LOOKING)
HEAD_TOKENS, TAIL_TOKENS = 200, 64
TARGETS_MS = {
    ("none", 8192): 30,
    ("none", 16384): 42,
    ("none", 32768): 65,
    ("random(0.05)", 8192): 35,
    ("random(0.05)", 16384): 60,
    ("random(0.05)", 32768): 110,
    ("random(0.15)", 8192): 60,
    ("random(0.15)", 16384): 110,
    ("random(0.15)", 32768): 230,
    (LOOKING, 8192): 45,
    (LOOKING, 16384): 75,
    (LOOKING, 32768): 130,
}
CAPTURE_TARGETS_MS = {8192: 100, 16384: 200, 32768: 400}
DOCUMENTS = 10


class Bench:
    """One engine, and ways to time it."""

    def __init__(self, options: argparse.Namespace) -> None:
        from vllm import LLM
        from vllm.config import KVTransferConfig

        extra = {"mode": "segmented_experimental", "min_prompt_tokens": 64}
        settings: dict[str, Any] = (
            {"dtype": "bfloat16", "gpu_memory_utilization": options.memory}
            if on_gpu()
            else {"dtype": "float32", "enforce_eager": True, "kv_cache_memory_bytes": 1 << 30}
        )
        self.llm = LLM(
            model=str(options.model),
            skip_tokenizer_init=True,
            max_model_len=max(options.lengths) + 1024,
            worker_cls="semblend.integration.vllm.worker.SemBlendWorker",
            kv_transfer_config=KVTransferConfig(
                kv_connector="SemBlendConnectorV1",
                kv_connector_module_path="semblend.integration.vllm.connector_v1",
                kv_role="kv_both",
                kv_load_failure_policy="recompute",
                kv_connector_extra_config=extra,
            ),
            **settings,
        )
        self.core = self.llm.llm_engine.engine_core.engine_core
        vocabulary = int(self.core.vllm_config.model_config.get_vocab_size())
        self._random = np.random.default_rng(options.seed)
        self._largest = vocabulary - 10

    def text(self, tokens: int) -> list[int]:
        """Random tokens that were never seen."""
        drawn: list[int] = self._random.integers(10, self._largest, tokens).tolist()
        return drawn

    def around(self, document: list[int]) -> list[int]:
        """A document after a new instruction and before a new question."""
        return [*self.text(HEAD_TOKENS), *document, *self.text(TAIL_TOKENS)]

    def sampling(self, hints: dict[str, Any], tokens: int) -> Any:
        """Greedy, to the last token."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        return SamplingParams(
            max_tokens=tokens,
            temperature=0.0,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
            extra_args={"kv_transfer_params": {"semblend": hints}},
        )

    def ask(self, tokens: list[int], hints: dict[str, Any]) -> tuple[float, float, dict[str, Any]]:
        """Milliseconds to the first token, milliseconds captures took after it, and the report."""
        prompt, plan = {"prompt_token_ids": tokens}, self.sampling(hints, 1)
        started = time.perf_counter()
        (output,) = self.llm.generate([prompt], plan, use_tqdm=False)
        answered = time.perf_counter()
        self.drain()
        behind = time.perf_counter() - answered
        return (answered - started) * 1e3, behind * 1e3, _said(output)

    def drain(self) -> None:
        """Step until captures have ended."""
        while self.core.scheduler.has_requests():
            self.core.step_fn()


def alone(bench: Bench, report: BenchmarkReport, *, lengths: list[int], rounds: int) -> None:
    """One request at a time."""
    for length in (lengths[0] // 4, lengths[0]):
        bench.ask(bench.text(length), OFF)
    for length in lengths:
        case = f"{length} tokens"
        cold = _median([bench.ask(bench.text(length), OFF)[0] for _ in range(rounds)])
        report.add(case, "cold", cold, "ms")
        misses = [bench.ask(bench.text(length), {}) for _ in range(rounds)]
        missed = _median([took for took, _, _ in misses])
        report.add(case, "miss, captured", missed, "ms")
        report.add(case, "miss over cold", (missed / cold - 1) * 100, "%", at_most=1.0)
        behind = _median([after for _, after, _ in misses])
        target = CAPTURE_TARGETS_MS.get(length)
        report.add(case, "capture behind the first token", behind, "ms", at_most=target)
        document = bench.text(length - HEAD_TOKENS - TAIL_TOKENS)
        bench.ask(bench.around(document), DONATE)
        for policy in POLICIES:
            hints = {"policy": policy, "capture": False}
            bench.ask(bench.around(document), hints)  # kernels of a shape compile on first use
            hits = [bench.ask(bench.around(document), hints) for _ in range(rounds)]
            if any(said.get("outcome") != "materialised" for _, _, said in hits):
                report.add(case, f"{policy}: not reused", len(hits), "requests", at_most=0)
                continue
            warm = _median([took for took, _, _ in hits])
            target = TARGETS_MS.get((policy, length))
            report.add(case, f"hit, {policy}", warm, "ms", at_most=target)
            report.add(case, f"hit, {policy}, times cold's speed", cold / warm, "x")


def under_load(bench: Bench, report: BenchmarkReport, *, length: int, hits: int) -> None:
    """Many requests at once, with eight decoding streams running."""
    documents = [bench.text(length - HEAD_TOKENS - TAIL_TOKENS) for _ in range(DOCUMENTS)]
    for document in documents:
        bench.ask(bench.around(document), DONATE)
    scenes = {"cold": OFF, "misses, captured": DONATE} | {
        policy: {"policy": policy, "capture": False} for policy in POLICIES
    }
    for scene, hints in scenes.items():
        fresh = scene in ("cold", "misses, captured")
        prompts = [
            bench.around(bench.text(len(documents[0])) if fresh else documents[n % DOCUMENTS])
            for n in range(hits)
        ]
        first, gaps = _crowd(bench, scene, prompts, hints)
        case, bounded = f"{hits} of {length} tokens beside 8 streams: {scene}", not fresh
        for share, limit in ((50, 800.0), (99, 1500.0)):
            value = float(np.percentile(first, share))
            target = limit if bounded else None
            report.add(case, f"first token, p{share}", value, "ms", at_most=target)
        longest = max(gaps, default=0.0)
        report.add(case, "longest gap", longest, "ms", at_most=120.0 if bounded else None)


def _crowd(
    bench: Bench, scene: str, prompts: list[list[int]], hints: dict[str, Any]
) -> tuple[list[float], list[float]]:
    """Milliseconds to each prompt's first token, and between the streams' tokens."""
    engine = bench.llm.llm_engine
    for number in range(8):
        prompt = {"prompt_token_ids": bench.text(500)}
        engine.add_request(f"{scene}-stream-{number}", prompt, bench.sampling(OFF, 600))
    for _ in range(40):
        engine.step()
    started = time.perf_counter()
    for number, prompt in enumerate(prompts):
        tokens = {"prompt_token_ids": prompt}
        engine.add_request(f"{scene}-{number}", tokens, bench.sampling(hints, 8))
    first: dict[str, float] = {}
    last: dict[str, float] = {}
    gaps: list[float] = []
    left = len(prompts)
    while engine.has_unfinished_requests():
        for output in engine.step():
            now, request = time.perf_counter(), output.request_id
            if "-stream-" in request:
                if request in last and left:
                    gaps.append((now - last[request]) * 1e3)
                last[request] = now
                continue
            first.setdefault(request, (now - started) * 1e3)
            left -= output.finished
    bench.drain()
    return list(first.values()), gaps


def make_model(folder: Path) -> None:
    """Random bfloat16 weights, for timing."""
    import torch
    import transformers

    from benchmarks.gpu.seven_b import SHAPE

    torch.set_default_dtype(torch.bfloat16)
    config = transformers.Qwen2Config(**SHAPE, bos_token_id=1, eos_token_id=2)
    with torch.device("cuda" if on_gpu() else "cpu"):
        model = transformers.Qwen2ForCausalLM(config)
    model.save_pretrained(folder, max_shard_size="4GB")


def _median(values: list[float]) -> float:
    return float(np.median(values))


def _said(output: Any) -> dict[str, Any]:
    said: dict[str, Any] = (output.kv_transfer_params or {}).get("semblend", {})
    return said


def main() -> int:
    """Measure and report; 1 if a target is missed."""
    gpu = on_gpu()
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.vllm_gpu",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    add: Any = parser.add_argument
    add("--model", type=Path, help="a folder that vLLM loads")
    add("--make-model", type=Path, metavar="FOLDER", help="write random weights there and exit")
    add("--lengths", type=int, nargs="+", default=[8192, 16384, 32768] if gpu else [1024])
    add("--rounds", type=int, default=5)
    add("--crowd", type=int, default=50 if gpu else 6, help="requests at once; 0 skips it")
    add("--memory", type=float, default=0.7, help="gpu_memory_utilization")
    add("--seed", type=int, default=5)
    add("--json", action="store_true")
    options = parser.parse_args()
    if options.make_model:
        make_model(options.make_model)
        return 0
    if options.model is None or not options.model.is_dir():
        parser.error(f"--model: expected a folder, got {options.model}")
    os.environ.update(
        HF_HUB_OFFLINE="1",
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        VLLM_NO_USAGE_STATS="1",
        VLLM_USE_FLASHINFER_SAMPLER="0",
        VLLM_CPU_OMP_THREADS_BIND="nobind",
        SEMBLEND_SHADOW_RATE="0",
    )
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    out, sys.stdout = sys.stdout, sys.stderr  # standard output is for the report only
    bench, report = Bench(options), BenchmarkReport("vllm_gpu")
    alone(bench, report, lengths=options.lengths, rounds=options.rounds)
    if options.crowd:
        under_load(bench, report, length=options.lengths[0], hits=options.crowd)
    sys.stdout = out
    report.command = shlex.join(["python", "-m", "benchmarks.vllm_gpu", *sys.argv[1:]])
    report.show(as_json=options.json)
    return 1 if report.failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
