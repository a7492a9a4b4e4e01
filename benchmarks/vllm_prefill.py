"""Prefill in real vLLM: with the connector against without it, on the same prompts.

    .venv-vllm/bin/python -m benchmarks.vllm_prefill [--model random] [--rounds 3] [--pairs 20]

Two engines run side by side, one process each: plain vLLM, and vLLM with the connector. They take
turns, so that other load on the machine hits both; each figure is a ratio of the two arms' best
rounds. fp32, greedy, one output token, CPU. Prefix caching is on in both. Every round has a new
instruction and a new question around documents that the connector's engine has already seen after
others. The cost of a miss is a median over pairs of requests, with an interval. Settings are the
defaults.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.vllm_arms import Arm, Tokens
from semblend.bench.benchmark_report import BenchmarkReport
from semblend.quality.intervals import bootstrap_median

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "models" / "semblend-reference-27m"
INSTRUCTION_TOKENS, QUESTION_TOKENS = 200, 64
RESAMPLES = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One kind of prompt: what the donor said, what recomputes, and the target."""

    name: str
    documents: tuple[int, ...]
    """Tokens per document; the donor holds them in order, prompts shuffle them."""
    policy: str
    at_least: float


def cases(longest: int) -> list[Case]:
    """The cases, cut to what fits the model's context."""
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


class Prompts:
    """Random texts from a model's vocabulary."""

    def __init__(self, vocabulary: int, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._vocabulary = vocabulary

    def text(self, tokens: int) -> Tokens:
        """This many tokens."""
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


def measure_miss(
    label: str, report: BenchmarkReport, plain: Arm, reusing: Arm, prompts: Prompts, pairs: int
) -> None:
    """What the connector adds to prompts it has never seen, capture on, each prompt once.

    Three requests form a round, in turn: the connector at work, the same engine with the
    connector switched off, and plain vLLM in its own process. The second comparison is
    noisier: two processes with equal work differ by some percent for as long as they live.
    """
    kinds = {
        "on": lambda tokens: reusing.run(tokens),
        "off": lambda tokens: reusing.run(tokens, off=True),
        "plain": lambda tokens: plain.run(tokens),
    }
    rounds: list[dict[str, dict[str, float]]] = []
    for number in range(pairs):
        order = list(kinds)[number % 3 :] + list(kinds)[: number % 3]
        rounds.append({kind: kinds[kind](prompts.text(4096)) for kind in order})

    def over(base: str, clock: str) -> npt.NDArray[np.float64]:
        return np.array([100 * (r["on"][clock] / r[base][clock] - 1.0) for r in rounds])

    walls = over("off", "wall")
    low, high = bootstrap_median(walls.tolist(), resamples=RESAMPLES)
    title = f"overhead, median of {pairs} pairs"
    report.add(label, title, float(np.median(walls)), "%", at_most=2.0)
    report.add(label, "its 95 % interval, low", low, "%")
    report.add(label, "its 95 % interval, high", high, "%")
    report.add(label, "overhead, CPU time", float(np.median(over("off", "cpu"))), "%")
    inside = [100 * r["on"]["inside"] / r["on"]["wall"] for r in rounds]
    report.add(label, "inside the connector's calls", float(np.median(inside)), "%")
    behind = [100 * r["on"]["behind"] / r["on"]["wall"] for r in rounds]
    report.add(label, "copying behind the first token", float(np.median(behind)), "%")
    walls = over("plain", "wall")
    low, high = bootstrap_median(walls.tolist(), resamples=RESAMPLES)
    report.add(label, "over another process", float(np.median(walls)), "%")
    report.add(label, "its 95 % interval, low (processes)", low, "%")
    report.add(label, "its 95 % interval, high (processes)", high, "%")


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


def measure(name: str, report: BenchmarkReport, *, rounds: int, pairs: int, threads: int) -> None:
    """Measure all cases of one model."""
    with tempfile.TemporaryDirectory() as folder:
        reference = name == "reference"
        model = str(REFERENCE) if reference else random_model(Path(folder))
        plain = Arm(model, connector=False, threads=threads)
        reusing = Arm(model, connector=True, threads=threads)
        prompts = Prompts(16384, seed=1)
        warm_up = prompts.text(1024)
        plain.run(warm_up)
        reusing.run(warm_up, {"reuse": False, "capture": False})
        for case in cases(8192 if reference else 16384) if rounds else ():
            wall, cpu, share = measure_hit(case, plain, reusing, prompts, rounds)
            label = f"{name}: {case.name}"
            report.add(label, "prefill speedup", wall, "x", at_least=case.at_least)
            report.add(label, "prefill speedup, CPU time", cpu, "x")
            report.add(label, "reused share of the prompt", share, "")
        if pairs:
            label = f"{name}: 4K miss, capture on"
            measure_miss(label, report, plain, reusing, prompts, pairs)
        plain.close()
        reusing.close()


def main() -> None:
    """Measure, print, and fail if a target is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", choices=("both", "reference", "random"), default="both")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    report = BenchmarkReport(
        benchmark="vllm_prefill",
        command=" ".join(["python -m benchmarks.vllm_prefill", *sys.argv[1:]]),
    )
    for name in ("reference", "random") if arguments.model == "both" else (arguments.model,):
        measure(
            name, report, rounds=arguments.rounds, pairs=arguments.pairs, threads=arguments.threads
        )
    report.show(as_json=arguments.json)
    if report.failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
