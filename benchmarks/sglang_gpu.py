"""Time to the first token inside SGLang on a GPU: cold and hits, alone and fifty at once.

    python -m benchmarks.sglang_gpu --json      all rows, about two minutes

One scheduler with SGLang's own defaults, Qwen2.5-7B's shape and random weights; donors lie in
SGLang's own pool. Cold and hits are measured in the same scheduler, so their ratios come from one
run. Without a GPU it uses a small model in float32, which tests the program and says nothing about
speed.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
import time
from typing import Any

import numpy as np
from tests.integration.sglang import probes
from tests.integration.sglang.engines import DEVICE, Engine

from semblend.bench.benchmark_report import BenchmarkReport
from semblend.core.tokens import TokenArray

ON_GPU = DEVICE != "cpu"
OFF = {"reuse": False, "donate": False}
HIT = {"donate": False}
DONATE = {"reuse": False}
FIVE_PERCENT = "random(0.05)"
LOOKING = (
    "budget(edit_dependents(1, 8) + span_head(8) + query_attention(0.05, 16, 'displaced'), 0.15)"
)
POLICIES = ("none", FIVE_PERCENT, LOOKING)
TIMES_COLD = {("none", 32768): 20.0, (FIVE_PERCENT, 32768): 9.0}
"""Least speed of a hit, as a multiple of cold's, by policy and prompt."""
CROWD_MS = 800.0
"""Most milliseconds to the first token of half the requests, with fifty of 8K at once."""
HEAD_TOKENS, TAIL_TOKENS = 200, 64
DOCUMENTS = 10


class Bench:
    """One scheduler, and ways to time it."""

    def __init__(self, *, longest: int, crowd: int, seed: int) -> None:
        server: dict[str, Any] = {"context_length": longest + 1024, "max_running_requests": 64}
        model = "llama"
        if ON_GPU:
            model = "reference"  # a folder that is there; the next line says which is used
            server |= {"model_path": _seven_b(), "load_format": "dummy", "dtype": "bfloat16"}
            server["max_total_tokens"] = None
        else:
            server |= {"max_total_tokens": 4 * longest * (DOCUMENTS + crowd)}
        self.engine = Engine(model, server=server, watched=False)
        vocabulary = self.engine.call(_vocabulary)
        self._random = np.random.default_rng(seed)
        self._largest = vocabulary - 10

    def text(self, tokens: int) -> TokenArray:
        """Random tokens that were never seen."""
        return self._random.integers(10, self._largest, tokens).astype(np.int32)

    def around(self, document: TokenArray) -> TokenArray:
        """A document after a new instruction and before a new question."""
        head, tail = self.text(HEAD_TOKENS), self.text(TAIL_TOKENS)
        return np.concatenate((head, document, tail))

    def document(self, length: int) -> TokenArray:
        """What a prompt of this length is about."""
        return self.text(length - HEAD_TOKENS - TAIL_TOKENS)

    def policy(self, spec: str) -> None:
        """Plan with another policy from now on."""
        self.engine.call(probes.set_policy, spec)

    def donate(self, document: TokenArray) -> None:
        """Compute a document behind other text, and wait until it can be found."""
        self.engine.donate(self.around(document), hints=DONATE)

    def ask(self, tokens: TokenArray, hints: dict[str, Any]) -> tuple[float, dict[str, Any]]:
        """Milliseconds to the first token, and what the answer says of reuse."""
        started = time.perf_counter()
        answer = self.engine.run(tokens, max_tokens=1, hints=hints)
        return (time.perf_counter() - started) * 1e3, answer.semblend

    def crowd(self, prompts: list[TokenArray], hints: dict[str, Any]) -> tuple[list[float], int]:
        """Milliseconds to each prompt's first token, and how many were reused."""
        started = time.perf_counter()
        waiting = set(self.engine.submit(prompts, max_tokens=8, hints=hints, stream=True))
        first: dict[str, float] = {}
        reused: set[str] = set()
        while waiting:
            message = self.engine.next_message(60.0)
            if message is None:
                raise TimeoutError(f"{len(waiting)} requests do not end")
            kind, body = message
            if kind != "output":
                continue
            first.setdefault(body["rid"], (time.perf_counter() - started) * 1e3)
            if any(said["outcome"] == "materialised" for said in body["semblend"]):
                reused.add(body["rid"])
            if body["finished"] is not None:
                waiting.discard(body["rid"])
        return list(first.values()), len(reused)


def alone(bench: Bench, report: BenchmarkReport, *, lengths: list[int], rounds: int) -> None:
    """One request at a time."""
    for length in (lengths[0] // 4, lengths[0]):
        bench.ask(bench.text(length), OFF)
    for length in lengths:
        case = f"{length} tokens"
        cold = _median([bench.ask(bench.text(length), OFF)[0] for _ in range(rounds)])
        report.add(case, "cold", cold, "ms")
        document = bench.document(length)
        bench.policy("none")
        bench.donate(document)
        for policy in POLICIES:
            bench.policy(policy)
            bench.ask(bench.around(document), HIT)  # kernels of a shape compile on first use
            hits = [bench.ask(bench.around(document), HIT) for _ in range(rounds)]
            missed = sum(said.get("outcome") != "materialised" for _, said in hits)
            if missed:
                report.add(case, f"{policy}: not reused", missed, "requests", at_most=0)
                continue
            warm = _median([took for took, _ in hits])
            report.add(case, f"hit, {policy}", warm, "ms")
            least = TIMES_COLD.get((policy, length))
            report.add(case, f"hit, {policy}, times cold", cold / warm, "x", at_least=least)


def at_once(bench: Bench, report: BenchmarkReport, *, length: int, requests: int) -> None:
    """Many requests in one turn of the scheduler."""
    bench.policy("none")
    documents = [bench.document(length) for _ in range(DOCUMENTS)]
    for document in documents:
        bench.donate(document)
    for scene in ("cold", *POLICIES):
        cold = scene == "cold"
        prompts = [
            bench.text(length) if cold else bench.around(documents[number % DOCUMENTS])
            for number in range(requests)
        ]
        if not cold:
            bench.policy(scene)
        first, reused = bench.crowd(prompts, OFF if cold else HIT)
        case = f"{requests} of {length} tokens at once: {scene}"
        if not cold:
            report.add(case, "not reused", requests - reused, "requests", at_most=0)
        for share in (50, 99):
            most = CROWD_MS if share == 50 and not cold and ON_GPU else None
            value = float(np.percentile(first, share))
            report.add(case, f"first token, p{share}", value, "ms", at_most=most)


def _vocabulary(host: Any) -> int:
    return int(host.runner.model_config.vocab_size)


def _seven_b() -> str:
    """A folder with the shape of Qwen2.5-7B; SGLang makes up the weights."""
    import transformers

    from benchmarks.gpu.seven_b import SHAPE

    folder = tempfile.mkdtemp(prefix="seven-b-")
    names = ["Qwen2ForCausalLM"]
    config = transformers.Qwen2Config(**SHAPE, bos_token_id=1, eos_token_id=2, architectures=names)
    config.save_pretrained(folder)
    return folder


def _median(values: list[float]) -> float:
    return float(np.median(values))


def main() -> int:
    """Measure and report; 1 if a target is missed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sglang_gpu",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    add: Any = parser.add_argument
    add("--lengths", type=int, nargs="+", default=[8192, 32768] if ON_GPU else [768])
    add("--rounds", type=int, default=5 if ON_GPU else 2)
    add("--crowd", type=int, default=50 if ON_GPU else 4, help="requests at once; 0 skips it")
    add("--seed", type=int, default=5)
    add("--json", action="store_true")
    options = parser.parse_args()
    os.environ["SEMBLEND_SHADOW_RATE"] = "0"
    out, sys.stdout = sys.stdout, sys.stderr  # standard output is for the report only
    longest = max(options.lengths)
    bench = Bench(longest=longest, crowd=options.crowd, seed=options.seed)
    report = BenchmarkReport("sglang_gpu")
    try:
        alone(bench, report, lengths=options.lengths, rounds=options.rounds)
        if options.crowd:
            at_once(bench, report, length=options.lengths[0], requests=options.crowd)
    finally:
        sys.stdout = out
        bench.engine.close()
    report.command = shlex.join(["python", "-m", "benchmarks.sglang_gpu", *sys.argv[1:]])
    report.show(as_json=options.json)
    return 1 if report.failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
