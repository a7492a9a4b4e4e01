"""Conversations and agents against the same engine with its prefix cache alone, turn by turn.

    PYTHONPATH=src:. python -m benchmarks.conversations --json
    PYTHONPATH=src:. python -m benchmarks.conversations --engine vllm --json

The chat reads a document that another conversation has read, and asks ten questions about it. The
agent reads files until its history has 6,000 tokens, has it summarised, continues with the summary
and the end of the history, and does so twice; every third file is one it has read before.

All arms get the same prompts, which continue with SemBlend's answers; an arm that said something
else is given the conversation first, so that its prefix cache misses nothing. Counts are compared
turn by turn with a prefix cache that forgets nothing. Times to first token are compared turn by
turn with the second arm's, in processor seconds of the engine's process. The third arm is the
second once more: how far those two differ is the noise. Tokens that promotion computes in idle
steps belong to no turn, and they are not free; `--never-idle` does without.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import numpy as np
import torch
from transformers import AutoTokenizer

from benchmarks.conversations.arms import POOL_TOKENS, Arm, embedded_arms
from benchmarks.conversations.playing import Stage, Turn
from benchmarks.conversations.stories import agent, chat
from benchmarks.conversations.vllm_arm import vllm_arms
from semblend.bench.benchmark_report import BenchmarkReport

MODEL = "models/semblend-reference-27m"
MINE, PLAIN, AGAIN = ARMS = ("semblend", "prefix cache", "prefix cache again")
CHARACTERS = 4
"""Of a token, about: the agent's history is measured before it is tokenised."""


def measure_chat(
    report: BenchmarkReport, arms: dict[str, Arm], stage: Stage, flags: argparse.Namespace
) -> None:
    """Per turn: tokens and time against the prefix cache, and whether answers are right."""
    talks: list[list[Turn]] = []
    for number in range(flags.conversations):
        talk: list[Turn] = []
        story = chat(flags.seed + number, length=flags.length, turns=flags.turns)
        stage.play(story, seen=talk.append)
        talks.append(talk[1:])  # the first is somebody else's
    case = "chat"
    everything = [turn for talk in talks for turn in talk]
    for number, turns in enumerate(zip(*talks, strict=True), start=1):
        for name in (MINE, PLAIN):
            mean = float(np.mean([turn.replies[name].computed for turn in turns]))
            report.add(f"{case}, {name}", f"computed tokens, turn {number}", mean, "tokens")
    _add_counts(report, case, everything, at_most=1.0)
    _add_times(report, case, [list(turns) for turns in zip(*talks, strict=True)], flags.clock)
    rights = {name: [turn.right[name] for turn in everything] for name in (MINE, PLAIN)}
    lost = float(np.mean(rights[PLAIN])) - float(np.mean(rights[MINE]))
    report.add(case, "answers", len(everything), "answers")
    report.add(case, "right answers", 100 * float(np.mean(rights[MINE])), "%")
    report.add(case, "right answers lost against cold", 100 * lost, "%", at_most=1.0)
    same = [turn.replies[MINE].tokens == turn.replies[PLAIN].tokens for turn in everything]
    report.add(case, "same answer as cold, token for token", 100 * float(np.mean(same)), "%")
    _add_usage(report, case, arms)


def measure_agent(
    report: BenchmarkReport, arms: dict[str, Arm], stage: Stage, flags: argparse.Namespace
) -> None:
    """A whole run with compactions, and its worst turn."""
    turns: list[Turn] = []
    story = agent(flags.seed, threshold=flags.history, compactions=2, count=CHARACTERS)
    stage.play(story, seen=turns.append)
    case = "agent, two compactions"
    report.add(case, "turns", len(turns), "turns")
    _add_counts(report, case, turns, at_most=0.6)
    behind = [at + 1 for at, turn in enumerate(turns[:-1]) if turn.kind == "summary"]
    for number, at in enumerate(behind, start=1):
        share = turns[at].replies[MINE].computed / turns[at].ideal
        name = f"first prompt behind compaction {number}, against the prefix cache"
        report.add(case, name, share, "ratio")
    _add_times(report, case, [[turn] for turn in turns], flags.clock, each=False)
    _add_usage(report, case, arms)


def _add_counts(
    report: BenchmarkReport, case: str, turns: Sequence[Turn], *, at_most: float
) -> None:
    mine = sum(turn.replies[MINE].computed for turn in turns)
    plain = sum(turn.replies[PLAIN].computed for turn in turns)
    report.add(case, "computed by the prefix cache", plain, "tokens")
    report.add(case, "computed", mine, "tokens")
    worst = max(turn.replies[MINE].computed / turn.ideal for turn in turns)
    report.add(case, "worst turn against the prefix cache", worst, "ratio", at_most=1.0)
    report.add(case, "all turns against the prefix cache", mine / plain, "ratio", at_most=at_most)


def _add_times(
    report: BenchmarkReport,
    case: str,
    turns: Sequence[list[Turn]],
    clock: str,
    *,
    each: bool = True,
) -> None:
    """Ratios of times to first token; a turn's is the median over conversations."""

    def medians(name: str) -> list[float]:
        return [float(np.median([_ratio(turn, name, clock) for turn in same])) for same in turns]

    against, noise = medians(MINE), medians(AGAIN)
    if each:
        for number, (ratio, other) in enumerate(zip(against, noise, strict=True), start=1):
            report.add(case, f"time to first token, turn {number}", ratio, "ratio")
            report.add(case, f"time to first token, turn {number}, noise", other, "ratio")
    report.add(case, "time to first token, all turns", float(np.median(against)), "ratio")
    report.add(case, "time to first token, worst turn", max(against), "ratio", at_most=1.05)
    report.add(case, "time to first token, worst turn, noise", max(noise), "ratio")
    total = [
        sum(turn.replies[name].seconds for same in turns for turn in same) for name in (MINE, PLAIN)
    ]
    report.add(case, "time to first token, summed, wall clock", total[0] / total[1], "ratio")


def _ratio(turn: Turn, name: str, clock: str) -> float:
    mine, plain = turn.replies[name], turn.replies[PLAIN]
    return mine.cpu / plain.cpu if clock == "cpu" else mine.seconds / plain.seconds


def _add_usage(report: BenchmarkReport, case: str, arms: dict[str, Arm]) -> None:
    usage = arms[MINE].usage()
    report.add(case, "computed in idle steps", usage.promoted_tokens, "tokens")
    report.add(case, "memory of chains", usage.chain_share, "of their cap", at_most=1.0)


def main(arguments: list[str]) -> int:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--json", action="store_true")
    flags.add_argument("--engine", choices=("embedded", "vllm"), default="embedded")
    flags.add_argument("--only", choices=("chat", "agent"))
    flags.add_argument("--never-idle", action="store_true", help="promote nothing")
    flags.add_argument("--clock", choices=("cpu", "wall"), default="cpu", help="wall on a GPU")
    flags.add_argument("--conversations", type=int, default=10)
    flags.add_argument("--turns", type=int, default=10)
    flags.add_argument("--length", type=int, default=1000, help="tokens of a chat's document")
    flags.add_argument("--history", type=int, default=6000, help="tokens that are compacted")
    flags.add_argument("--pool", type=int, default=POOL_TOKENS, help="tokens of the K/V pool")
    flags.add_argument("--seed", type=int, default=0)
    chosen = flags.parse_args(arguments)
    command = "python -m benchmarks.conversations " + " ".join(arguments)
    report = BenchmarkReport(f"conversations, {chosen.engine}", command=command.strip())
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    make = vllm_arms if chosen.engine == "vllm" else embedded_arms
    for measure, name in ((measure_chat, "chat"), (measure_agent, "agent")):
        if chosen.only not in (None, name):
            continue
        arms = make(MODEL, ARMS, pool_tokens=chosen.pool)
        try:
            stage = Stage(arms=arms, tokenizer=tokenizer, leader=MINE, idle=not chosen.never_idle)
            measure(report, arms, stage, chosen)
        finally:
            for arm in arms.values():
                arm.close()
    report.show(as_json=chosen.json)
    return 1 if report.failed else 0


if __name__ == "__main__":
    torch.set_num_threads(1)  # times are compared in processor seconds
    sys.exit(main(sys.argv[1:]))
