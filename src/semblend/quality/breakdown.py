"""Where a policy does well and where it does not: by workload, length, kind and edit count.

Every table is headings and rows of text, so that reports and pages show the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from semblend.quality.figures import CONTROL, PROSE, Figures
from semblend.quality.intervals import wilson
from semblend.quality.measure import Record

EDITED = "edited"
SIZES = ((1_500, "1K"), (3_000, "2K"), (5_500, "4K"), (10**9, "7K"))
"""Upper bounds of the prompt lengths used, with their names."""

COUNTS = ((2, "1 to 2"), (8, "3 to 8"), (10**9, "9 to 20"))
DENSE = 12
"""At this many edits per 1K tokens, every second sentence is edited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Headings and rows, all text."""

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def by_workload(figures: Sequence[Figures], policy: str) -> Table:
    """One policy on every workload, next to cold and naive reuse."""
    naive = {row.workload: row for row in figures if row.policy == "none"}
    rows: list[tuple[str, ...]] = []
    for row in figures:
        if row.policy != policy:
            continue
        beside = naive[row.workload]
        prose = row.workload == PROSE
        rows.append(
            (
                row.workload,
                str(row.items),
                "–" if prose else _per_cent(row.cold_right),
                _per_cent(beside.top1 if prose else beside.right),
                _per_cent(row.top1) if prose else _with_interval(row.right, row.right_interval),
                "–" if prose else f"{row.kept:.1%}",
                "–" if prose else _with_interval(row.same, row.same_interval),
                f"{beside.towards_donor} / {row.towards_donor}",
                f"{row.kl:.1e}",
                _per_cent(row.recompute),
                _per_cent(row.declined),
                _per_cent(row.probe),
            )
        )
    return Table(
        headings=(
            "workload", "items", "cold", "naive", "right (95 %)", "of cold's", "same (95 %)",
            "to donor's: naive / policy", "KL", "recomputed", "declined", "probe",
        ),
        rows=tuple(rows),
    )  # fmt: skip


def by_length(records: Sequence[Record], policy: str) -> Table:
    """Right answers on moved text by length: cold, naive, the policy, and equal to cold."""
    groups = {
        f"{workload}, {size}": [
            r for r in records if r.workload == workload and _named(r.prompt_tokens, SIZES) == size
        ]
        for workload in dict.fromkeys(r.workload for r in records)
        if workload not in (EDITED, CONTROL, PROSE)
        for _, size in SIZES
    }
    return _compared(groups, policy)


def near_duplicates(records: Sequence[Record], policy: str) -> Table:
    """Edited documents of all kinds: by kind, depth, number of edits and length."""
    edited = [r for r in records if r.workload == EDITED]
    groups: dict[str, list[Record]] = {}

    def split(prefix: str, name: Callable[[Record], str], order: Sequence[str]) -> None:
        for wanted in order:
            groups[f"{prefix}{wanted}"] = [r for r in edited if name(r) == wanted]

    split("", lambda r: r.kind, list(dict.fromkeys(r.kind for r in edited)))
    split("value: ", lambda r: r.depth, list(dict.fromkeys(r.depth for r in edited)))
    split("edits: ", lambda r: _named(r.edits, COUNTS), [name for _, name in COUNTS])
    split("tokens: ", lambda r: _named(r.prompt_tokens, SIZES), [name for _, name in SIZES])
    groups[f"1K with {DENSE} to 20 edits"] = [
        r for r in edited if r.edits >= DENSE and _named(r.prompt_tokens, SIZES) == "1K"
    ]
    return _compared(groups, policy)


def candidates(figures: Sequence[Figures], policies: Mapping[str, str]) -> Table:
    """Compare policies (by short name): share of cold's answers kept, agreement and price."""
    rows: list[tuple[str, ...]] = []
    for workload in dict.fromkeys(row.workload for row in figures):
        if workload == PROSE:
            continue
        mine = {row.policy: row for row in figures if row.workload == workload}
        cells = [workload]
        for policy in policies.values():
            row = mine.get(policy)
            cells.append("–" if row is None else _summary(row))
        rows.append(tuple(cells))
    return Table(headings=("workload", *policies), rows=tuple(rows))


def _summary(row: Figures) -> str:
    same = _with_interval(row.same, row.same_interval)
    return f"{_per_cent(row.kept)}, same {same}, {_per_cent(row.recompute)}"


def _compared(groups: dict[str, list[Record]], policy: str) -> Table:
    rows: list[tuple[str, ...]] = []
    for name, records in groups.items():
        mine = [r for r in records if r.policy == policy]
        naive = [r for r in records if r.policy == "none"]
        if not mine:
            continue
        count = len(mine)
        reusable = sum(r.reusable_tokens for r in mine)
        declined = sum(r.declined_tokens for r in mine)
        recomputed = sum(r.recomputed_tokens for r in mine)
        right = sum(r.right for r in mine)
        rows.append(
            (
                name,
                str(count),
                _per_cent(sum(r.cold_right for r in mine) / count),
                _per_cent(sum(r.right for r in naive) / max(1, len(naive))),
                _with_interval(right / count, wilson(right, count)),
                _per_cent(sum(r.same for r in mine) / count),
                f"{sum(r.leaked and not r.cold_leaked for r in naive)} / "
                f"{sum(r.leaked and not r.cold_leaked for r in mine)}",
                _per_cent(recomputed / max(1, reusable - declined)),
                _per_cent(max(item_share(r) for r in mine)),
                _per_cent(declined / max(1, reusable)),
            )
        )
    return Table(
        headings=(
            "group", "items", "cold", "naive", "right (95 %)", "same", "to donor's: naive / policy",
            "recomputed", "most of an item", "declined",
        ),
        rows=tuple(rows),
    )  # fmt: skip


def item_share(record: Record) -> float:
    """Share of tokens that one item recomputes, in spans that are partly reused."""
    kept = record.reusable_tokens - record.declined_tokens
    return record.recomputed_tokens / kept if kept else 0.0


def _named(value: int, steps: Sequence[tuple[int, str]]) -> str:
    return next(name for end, name in steps if value <= end)


def _per_cent(value: float) -> str:
    return f"{100 * value:.1f}"


def _with_interval(value: float, interval: tuple[float, float]) -> str:
    low, high = interval
    return f"{100 * value:.1f} ({100 * low:.1f} to {100 * high:.1f})"
