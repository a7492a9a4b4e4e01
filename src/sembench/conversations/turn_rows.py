"""One row per turn, and the totals of a run's rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

import numpy as np

from sembench.conversations.measuring import Reusable
from sembench.conversations.messages import Turn
from sembench.errors import ResultError

TURNS_VERSION = "sembench.turns.v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRow:
    """What one turn needed. Engine counts are as reported; None if it reported nothing."""

    turn_id: str
    conversation: str
    branch: str
    position: int
    kind: str
    prompt_tokens: int
    """Counted with the client's tokenizer and layout."""
    prefix_tokens: int
    """How many of these a prefix cache that evicts nothing would serve."""
    oracle_tokens: int
    """How many of these identical runs of at least one block would serve."""
    planned_tokens: int | None = None
    plan_ms: float | None = None
    engine_prompt_tokens: int | None = None
    exact_tokens: int | None = None
    reused_tokens: int | None = None
    continued_tokens: int | None = None
    computed_tokens: int | None = None
    """Prompt tokens the engine computed."""
    confirmed_by: str | None = None
    outcome: str | None = None
    reason: str | None = None
    ttft_ms: float | None = None
    latency_ms: float | None = None
    output_text: str | None = None
    answer_recall: float | None = None
    """Compared with the answer in the prompt; None if the question cannot be checked."""
    error: str | None = None

    @classmethod
    def of(cls, turn: Turn, found: Reusable) -> Self:
        """A turn before an engine answers it."""
        return cls(
            turn_id=turn.turn_id,
            conversation=turn.conversation,
            branch=turn.branch,
            position=turn.position,
            kind=turn.kind.value,
            prompt_tokens=found.prompt_tokens,
            prefix_tokens=found.prefix_tokens,
            oracle_tokens=found.oracle_tokens,
            planned_tokens=found.planned_tokens,
            plan_ms=found.plan_ms,
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Any, *, where: str) -> Self:
        """Read a row; ignore fields this version does not know."""
        if not isinstance(data, Mapping):
            raise ResultError(f"{where}: expected an object")
        known = {field.name for field in fields(cls)}
        try:
            return cls(**{name: value for name, value in data.items() if name in known})
        except TypeError as error:
            raise ResultError(f"{where}: {error}") from error


def summarise_turns(rows: Iterable[TurnRow]) -> dict[str, Any]:
    """Totals over all turns, by kind, and relative to the prefix cache."""
    every = list(rows)
    kinds: dict[str, list[TurnRow]] = {}
    for row in every:
        kinds.setdefault(row.kind, []).append(row)
    return {
        **_sums(every),
        "turns_above_prefix_cache": _above(every),
        "by_kind": {kind: _sums(found) for kind, found in sorted(kinds.items())},
    }


def _sums(rows: list[TurnRow]) -> dict[str, Any]:
    prompt = sum(row.prompt_tokens for row in rows)
    prefix = prompt - sum(row.prefix_tokens for row in rows)
    sums: dict[str, Any] = {
        "turns": len(rows),
        "errors": sum(row.error is not None for row in rows),
        "prompt_tokens": prompt,
        "prefix_cache_computes": prefix,
        "oracle_computes": prompt - sum(row.oracle_tokens for row in rows),
        "planner_computes": None,
        "engine_computes": None,
    }
    if rows and all(row.planned_tokens is not None for row in rows):
        sums["planner_computes"] = prompt - sum(row.planned_tokens or 0 for row in rows)
    told = [row for row in rows if row.computed_tokens is not None]
    if rows and len(told) == len(rows):
        sums["engine_computes"] = sum(row.computed_tokens or 0 for row in told)
    for name in ("oracle", "planner", "engine"):
        value = sums[f"{name}_computes"]
        sums[f"{name}_against_prefix_cache"] = (
            value / prefix if value is not None and prefix else None
        )
    for name in ("exact", "reused", "continued"):
        values = [getattr(row, f"{name}_tokens") for row in rows]
        known = [value for value in values if value is not None]
        sums[f"{name}_tokens"] = sum(known) if known else None
    times = [row.ttft_ms for row in rows if row.ttft_ms is not None]
    recalls = [row.answer_recall for row in rows if row.answer_recall is not None]
    sums["ttft_ms_p50"] = float(np.percentile(times, 50)) if times else None
    sums["ttft_ms_mean"] = float(np.mean(times)) if times else None
    sums["answer_recall_mean"] = float(np.mean(recalls)) if recalls else None
    return sums


def _above(rows: list[TurnRow]) -> int | None:
    """Turns in which the engine computed more than a prefix cache would; None if unreported."""
    told = [row for row in rows if row.computed_tokens is not None]
    if not told:
        return None
    return sum((row.computed_tokens or 0) > row.prompt_tokens - row.prefix_tokens for row in told)


def compare_turns(rows: Iterable[TurnRow], baseline: Iterable[TurnRow]) -> dict[str, Any]:
    """Compare a run with the same turns on another engine: tokens computed and time."""
    before = {row.turn_id: row for row in baseline}
    pairs = [(row, before[row.turn_id]) for row in rows if row.turn_id in before]
    computed = [
        (now.computed_tokens, then.computed_tokens)
        for now, then in pairs
        if now.computed_tokens is not None and then.computed_tokens is not None
    ]
    ratios = [now.ttft_ms / then.ttft_ms for now, then in pairs if now.ttft_ms and then.ttft_ms]
    total = sum(then for _, then in computed)
    same = [
        now.output_text == then.output_text
        for now, then in pairs
        if now.output_text is not None and then.output_text is not None
    ]
    return {
        "turns": len(pairs),
        "computed_against_baseline": sum(now for now, _ in computed) / total if total else None,
        "turns_above_baseline": sum(now > then for now, then in computed) if computed else None,
        "ttft_ratio_median": float(np.median(ratios)) if ratios else None,
        "ttft_ratio_max": float(np.max(ratios)) if ratios else None,
        "identical_answer_rate": sum(same) / len(same) if same else None,
    }
