"""Answers of an engine with reuse next to its cold ones, kept in a file, and their figures."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from semblend.bench.benchmark_report import BenchmarkReport
from semblend.quality.intervals import paired_loss

DROP_PERCENT = 1.0
"""How far right answers with reuse may fall below cold's, in percent of cold's."""

MATERIALISED = "materialised"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """One item, answered cold and warm by the same engine. Flat, one JSON line each."""

    case: str
    workload: str
    seed: int
    length: int
    """Target prompt length in tokens."""
    policy: str
    certified: bool
    """As reported in the response."""
    outcome: str
    prompt_tokens: int
    reused_tokens: int
    recomputed_tokens: int
    expected: str
    cold: str
    warm: str
    cold_right: bool
    warm_right: bool
    leaked: bool
    """The warm answer states a donor's fact that the cold one does not."""

    @property
    def key(self) -> tuple[str, int, int, str]:
        """What it is an answer to."""
        return self.case, self.seed, self.length, self.policy

    @property
    def reused(self) -> bool:
        """Whether the engine confirmed reuse."""
        return self.outcome == MATERIALISED


class AnswerFile:
    """The answers so far. A line cut short by a crash is dropped on reading."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.answers: list[Answered] = []
        if path is not None and path.exists():
            lines = path.read_text(encoding="utf-8").split("\n")
            path.write_text("".join(f"{line}\n" for line in lines[:-1]), encoding="utf-8")
            found = [Answered(**json.loads(line)) for line in lines[:-1]]
            self.answers = list({answer.key: answer for answer in found}.values())
        self._done = {answer.key for answer in self.answers}
        self._cold = {answer.key[:3]: answer.cold for answer in self.answers}

    def holds(self, case: str, seed: int, length: int, policy: str) -> bool:
        """Whether this was asked before."""
        return (case, seed, length, policy) in self._done

    def cold(self, case: str, seed: int, length: int) -> str | None:
        """The cold answer, if another policy already asked for it; it is the same for all."""
        return self._cold.get((case, seed, length))

    def add(self, answer: Answered) -> None:
        """Keep an answer, on disk if there is a file."""
        self.answers.append(answer)
        self._done.add(answer.key)
        self._cold[answer.key[:3]] = answer.cold
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(answer), sort_keys=True) + "\n")


def report_policy(report: BenchmarkReport, answers: Sequence[Answered], *, judged: bool) -> None:
    """All figures of one policy. Only answers with confirmed reuse are judged: the others equal
    cold's by definition and would hide a loss."""
    reused = [answer for answer in answers if answer.reused]
    whole = "all"
    report.add(f"policy {answers[0].policy}", "items", len(answers), "")
    share = 100.0 * len(reused) / len(answers)
    report.add(whole, "items with confirmed reuse", share, "%", at_least=50.0)
    tokens = max(1, sum(answer.prompt_tokens for answer in reused))
    for name in ("reused", "recomputed"):
        found = sum(int(getattr(answer, f"{name}_tokens")) for answer in reused)
        report.add(whole, f"tokens {name}, of those items", 100.0 * found / tokens, "%")
    _add_pairs(report, whole, reused, judged=judged)
    report.add(
        whole,
        "donor's facts stated",
        sum(answer.leaked for answer in answers),
        "answers",
        at_most=0.0 if judged else None,
    )
    for group in _groups(reused):
        _add_pairs(report, *group, judged=False)


def report_control(report: BenchmarkReport, answers: Sequence[Answered]) -> None:
    """Reuse without recompute on the same items: a check that this passes could not fail."""
    reused = [answer for answer in answers if answer.reused]
    case = f"naive reuse, policy {answers[0].policy}"
    report.add(case, "items with confirmed reuse", len(reused), "")
    low, _, _ = _loss(reused)
    report.add(case, "loss, low end of its interval", low, "% of cold", at_least=DROP_PERCENT)
    _add_pairs(report, case, reused, judged=False)
    leaked = sum(answer.leaked for answer in answers)
    report.add(case, "donor's facts stated", leaked, "answers", at_least=1.0)


def _groups(answers: Iterable[Answered]) -> list[tuple[str, list[Answered]]]:
    groups: dict[str, list[Answered]] = {}
    for answer in answers:
        groups.setdefault(answer.workload, []).append(answer)
        groups.setdefault(f"about {answer.length} tokens", []).append(answer)
    return sorted(groups.items())


def _loss(answers: Sequence[Answered]) -> tuple[float, float, float]:
    """Low end, value and high end of the loss, in percent of cold's right answers."""
    lost = sum(answer.cold_right and not answer.warm_right for answer in answers)
    won = sum(answer.warm_right and not answer.cold_right for answer in answers)
    low, high = paired_loss(lost, won, len(answers))
    right = max(1, sum(answer.cold_right for answer in answers))
    scale = 100.0 * len(answers) / right
    return low * scale, 100.0 * (lost - won) / right, high * scale


def _add_pairs(
    report: BenchmarkReport, case: str, answers: Sequence[Answered], *, judged: bool
) -> None:
    counts: dict[str, Any] = {
        "right, cold": sum(answer.cold_right for answer in answers),
        "right, reuse": sum(answer.warm_right for answer in answers),
        "same answer": sum(answer.cold == answer.warm for answer in answers),
    }
    for name, count in counts.items():
        report.add(case, name, count, f"of {len(answers)}")
    low, loss, high = _loss(answers)
    report.add(case, "loss", loss, "% of cold", at_most=DROP_PERCENT if judged else None)
    report.add(case, "its 95 % interval, low", low, "% of cold")
    report.add(case, "its 95 % interval, high", high, "% of cold")
