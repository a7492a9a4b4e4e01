"""Time to the first token inside vLLM on a GPU: cold, misses and hits, alone and under load.

    python -m benchmarks.vllm_gpu --make-model FOLDER     random weights, Qwen2.5-7B's shape, 15 GB
    python -m benchmarks.vllm_gpu --model FOLDER --json   all rows, about five minutes

One engine with vLLM's own defaults and donors in host memory. Cold, miss and hit are measured in
the same engine, so their ratios come from one run. Parts: the table of lengths and policies
(`alone`), many requests beside decoding streams (`load`), and kinds of prompts that reuse must not
make slower (`sweep`). Without a GPU it uses a small model in float32: `sweep` then says something
about that CPU, the rest only tests the program.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.never_slower import never_slower, points
from benchmarks.vllm_connector import llm_options
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
STREAMS = 8
PARTS = ("alone", "load", "sweep")


class Bench:
    """One engine, and ways to time it."""

    def __init__(self, options: argparse.Namespace) -> None:
        from vllm import LLM

        extra = {"mode": "segmented_experimental", "min_prompt_tokens": 64}
        settings: dict[str, Any] = (
            {"dtype": "bfloat16", "gpu_memory_utilization": options.memory}
            if on_gpu()
            else {"dtype": "float32", "enforce_eager": True, "kv_cache_memory_bytes": 1 << 30}
        )
        self.llm = LLM(
            model=str(options.model),
            skip_tokenizer_init=True,
            max_model_len=max(*options.lengths, *options.sweep_lengths) + 1024,
            **llm_options(extra),
            **settings,
        )
        self.core = self.llm.llm_engine.engine_core.engine_core
        vocabulary = int(self.core.vllm_config.model_config.get_vocab_size())
        self._random = np.random.default_rng(options.seed)
        self._largest = vocabulary - 10

    @property
    def _side(self) -> Any:
        return self.core.scheduler.connector.scheduler_side

    @property
    def donors(self) -> int:
        """Prompts that are held."""
        return int(self._side.planner.pipeline.stats().donors)

    @property
    def cost(self) -> Any:
        """What plans are estimated with."""
        return self._side.planner.pipeline.cost

    @property
    def passes(self) -> Any:
        """The nested pass, in this process."""
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        return get_kv_transfer_group().worker_side.nested

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

    def composed(self, documents: list[list[int]]) -> list[int]:
        """The documents backwards, after a new instruction and before a new question."""
        return self.around([token for document in reversed(documents) for token in document])

    def ask(
        self,
        tokens: list[int],
        hints: dict[str, Any],
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> tuple[float, float, dict[str, Any]]:
        """Milliseconds to the first token, milliseconds captures took after it, and the report."""
        prompt, plan = {"prompt_token_ids": tokens}, self.sampling(hints, 1)
        started = clock()
        (output,) = self.llm.generate([prompt], plan, use_tqdm=False)
        answered = clock()
        self.drain()
        behind = clock() - answered
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
        pairs = [
            (bench.ask(bench.text(length), OFF), bench.ask(bench.text(length), {}))
            for _ in range(rounds)
        ]
        misses = [miss for _, miss in pairs]
        cold = _median([base[0] for base, _ in pairs])
        report.add(case, "cold", cold, "ms")
        report.add(case, "miss, captured", _median([took for took, _, _ in misses]), "ms")
        over = _median([miss[0] / base[0] for base, miss in pairs])
        report.add(case, "miss over cold", (over - 1) * 100, "%", at_most=1.0)
        behind = _median([after for _, after, _ in misses])
        target = CAPTURE_TARGETS_MS.get(length)
        report.add(case, "capture behind the first token", behind, "ms", at_most=target)
        each = (length - HEAD_TOKENS - TAIL_TOKENS) // DOCUMENTS
        documents = [bench.text(each) for _ in range(DOCUMENTS)]
        document = [token for one in documents for token in one]
        bench.ask(bench.around(document), DONATE)
        for policy in POLICIES:
            hints = {"policy": policy, "capture": False}

            def prompt(policy: str = policy, parts: list[list[int]] = documents) -> list[int]:
                # What probes is for compositions: the documents, in another order.
                if policy == LOOKING:
                    return bench.composed(parts)
                return bench.around([token for part in parts for token in part])

            bench.ask(prompt(), hints)  # kernels of a shape compile on first use
            replayed = bench.passes.replayed
            hits = [bench.ask(prompt(), hints) for _ in range(rounds)]
            target = TARGETS_MS.get((policy, length))
            lost = [said for _, _, said in hits if said.get("outcome") != "materialised"]
            if lost:
                why = str(lost[0].get("reason"))
                at_most = None if target is None else 0
                report.add(case, f"{policy}: {why}", len(lost), "requests", at_most=at_most)
                continue
            warm = _median([took for took, _, _ in hits])
            report.add(case, f"hit, {policy}", warm, "ms", at_most=target)
            report.add(case, f"hit, {policy}, times cold's speed", cold / warm, "x")
            shown = (bench.passes.replayed - replayed) / rounds
            report.add(case, f"hit, {policy}, forwards replayed from graphs", shown, "each")


def under_load(
    bench: Bench, report: BenchmarkReport, *, length: int, hits: int, stream_tokens: int
) -> None:
    """Many requests at once, with eight decoding streams running."""
    documents = [bench.text(length - HEAD_TOKENS - TAIL_TOKENS) for _ in range(DOCUMENTS)]
    for document in documents:
        bench.ask(bench.around(document), DONATE)
    scenes = {"cold": OFF, "misses, captured": DONATE} | {
        policy: {"policy": policy, "capture": False} for policy in POLICIES
    }
    cold_gap = 0.0
    for scene, hints in scenes.items():
        fresh = scene in ("cold", "misses, captured")
        prompts = [
            bench.around(bench.text(len(documents[0])) if fresh else documents[n % DOCUMENTS])
            for n in range(hits)
        ]
        held = bench.donors
        first, gaps = _crowd(bench, scene, prompts, hints, stream_tokens)
        case, bounded = f"{hits} of {length} tokens beside 8 streams: {scene}", not fresh
        for share, limit in ((50, 800.0), (99, 1500.0)):
            value = float(np.percentile(first, share))
            target = limit if bounded else None
            report.add(case, f"first token, p{share}", value, "ms", at_most=target)
        longest = max(gaps, default=0.0)
        report.add(case, "longest gap", longest, "ms", at_most=120.0 if bounded else None)
        gap = float(np.percentile(gaps, 99)) if gaps else 0.0
        report.add(case, "gap, p99", gap, "ms")
        if scene == "cold":
            cold_gap = gap
        elif fresh:
            over = (gap / cold_gap - 1) * 100 if cold_gap else 0.0
            report.add(case, "gap over cold's, p99", over, "%", at_most=5.0)
            report.add(case, "captured", bench.donors - held, "prompts", at_least=hits)


def _crowd(
    bench: Bench, scene: str, prompts: list[list[int]], hints: dict[str, Any], stream_tokens: int
) -> tuple[list[float], list[float]]:
    """Milliseconds to each prompt's first token, and between the streams' tokens."""
    engine = bench.llm.llm_engine
    for number in range(STREAMS):
        prompt = {"prompt_token_ids": bench.text(500)}
        engine.add_request(f"{scene}-stream-{number}", prompt, bench.sampling(OFF, stream_tokens))
    for _ in range(min(40, stream_tokens // 4)):
        engine.step()
    started = time.perf_counter()
    for number, waiting in enumerate(prompts):
        tokens = {"prompt_token_ids": waiting}
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


def _describe(bench: Bench, report: BenchmarkReport) -> None:
    """What the engine measured at start, in tokens' worth, and whether graphs can be replayed."""
    case, cost = "measured at start", bench.cost
    report.add(case, "costs are measured", float(cost.measured), "", at_least=1.0)
    for name in ("load", "span_fixed", "load_fixed", "pass_fixed", "attention_tokens"):
        report.add(case, name, getattr(cost, name), "tokens")
    has_graphs = bench.passes._graphs is not None
    target = 1.0 if on_gpu() else None
    report.add(case, "graphs of vLLM can be replayed", float(has_graphs), "", at_least=target)


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
    add("--parts", nargs="+", choices=PARTS, default=PARTS, help="what to measure")
    add("--crowd", type=int, default=50 if gpu else 6, help="requests at once")
    add("--stream-tokens", type=int, default=600 if gpu else 60, help="of each stream")
    lengths = [256, 512, 1024, 2048, 4096] if gpu else [256, 1024]
    add("--sweep-lengths", type=int, nargs="+", default=lengths)
    add("--sweep-shares", type=float, nargs="+", default=[0.3, 0.6, 0.8, 0.95])
    add("--sweep-spans", type=int, nargs="+", default=[1, 4, 16, 60])
    add("--sweep-policies", nargs="+", default=["none", LOOKING] if gpu else ["none"])
    add("--sweep-pairs", type=int, default=5 if gpu else 3)
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
        SEMBLEND_MEASURE_SPEED="1",
    )
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    out, sys.stdout = sys.stdout, sys.stderr  # standard output is for the report only
    bench, report = Bench(options), BenchmarkReport("vllm_gpu")
    bench.ask(bench.text(options.lengths[0]), OFF)  # the first step reports what was measured
    _describe(bench, report)
    if "alone" in options.parts:
        alone(bench, report, lengths=options.lengths, rounds=options.rounds)
    if "sweep" in options.parts:
        kinds = list(points(options.sweep_lengths, options.sweep_shares, options.sweep_spans))
        for policy in options.sweep_policies:
            pairs = options.sweep_pairs
            never_slower(bench, report, kinds, policy=policy, pairs=pairs, processor=not gpu)
    if "load" in options.parts:
        under_load(
            bench,
            report,
            length=options.lengths[0],
            hits=options.crowd,
            stream_tokens=options.stream_tokens,
        )
    sys.stdout = out
    report.command = shlex.join(["python", "-m", "benchmarks.vllm_gpu", *sys.argv[1:]])
    report.show(as_json=options.json)
    return 1 if report.failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
