"""What a load run produces: one row per request, the objective, and the totals.

Times count from when a request was *due*. A resumed run is one schedule with a gap: its
clock stops during the gap, and requests due right after it meet an idle endpoint. So
each session has its own warm-up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

from sembench import statistics
from sembench.errors import ResultError
from sembench.results import RunMetadata

LOAD_VERSION = "sembench.load.v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRow:
    """One request under load. All times count from when it was due."""

    position: int
    """Its number in the schedule."""
    item_id: str
    request_id: str
    due_s: float
    lag_ms: float
    """How long after its due time it was sent."""
    latency_ms: float
    """Due to last token."""
    ttft_ms: float | None = None
    """Due to first token."""
    tpot_ms: float | None = None
    """Time per output token after the first."""
    gaps_ms: tuple[float, ...] = ()
    """Times between neighbouring tokens, as they arrived."""
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    reused_tokens: int | None = None
    session_s: float = 0.0
    """Start of the sending session on the schedule's clock: 0, or where the run was resumed."""
    error: str | None = None

    @property
    def end_s(self) -> float:
        """When the last token arrived."""
        return self.due_s + self.latency_ms / 1000.0

    def to_dict(self) -> dict[str, Any]:
        data = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**data, "gaps_ms": list(self.gaps_ms)}

    @classmethod
    def from_dict(cls, data: Any, *, where: str = "requests") -> Self:
        """Read a row.

        Raises
        ------
        ResultError
            Naming the field that is missing or has the wrong type.
        """
        if not isinstance(data, Mapping):
            raise ResultError(f"{where}: expected an object")
        known: dict[str, Any] = {}
        for field in fields(cls):
            value = data.get(field.name)
            if field.name == "gaps_ms":
                known[field.name] = _gaps(value, where=where)
                continue
            kinds, optional = _KINDS[str(field.type)]
            if value is None and (optional or field.name == "session_s"):
                continue
            if isinstance(value, bool) or not isinstance(value, kinds):
                raise ResultError(f"{where}.{field.name}: expected {field.type}, got {value!r}")
            known[field.name] = value
        return cls(**known)


_KINDS: dict[str, tuple[tuple[type, ...], bool]] = {
    "int": ((int,), False),
    "str": ((str,), False),
    "float": ((int, float), False),
    "int | None": ((int,), True),
    "str | None": ((str,), True),
    "float | None": ((int, float), True),
}


def _gaps(value: Any, *, where: str) -> tuple[float, ...]:
    """Gaps as a file holds them; files written before there were any have none."""
    if value is None:
        return ()
    if not isinstance(value, list) or any(
        isinstance(gap, bool) or not isinstance(gap, int | float) for gap in value
    ):
        raise ResultError(f"{where}.gaps_ms: expected a list of numbers, got {value!r}")
    return tuple(float(gap) for gap in value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """A service-level objective; parts that are None set no limit."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    latency_ms: float | None = None

    def parts(self) -> tuple[tuple[str, float], ...]:
        """The limits that are set, by the name of the time they limit."""
        limits = ((field.name, getattr(self, field.name)) for field in fields(self))
        return tuple((name, limit) for name, limit in limits if limit is not None)

    def met(self, row: LoadRow) -> bool:
        """Whether a request was answered in time. An unmeasured time never meets a limit."""
        return row.error is None and all(
            (value := getattr(row, name)) is not None and value <= limit
            for name, limit in self.parts()
        )

    def to_dict(self) -> dict[str, float | None]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """A load result as read from a file; `aggregate` belongs to `requests`."""

    run: RunMetadata
    created_at_utc: str
    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    aggregate: Mapping[str, Any]
    requests: tuple[LoadRow, ...]
    engine: Mapping[str, Any] | None = None

    @property
    def objective(self) -> Objective:
        """The objective every request was held to."""
        slo = self.aggregate.get("slo") or {}
        return Objective(**{field.name: slo.get(field.name) for field in fields(Objective)})

    @property
    def counted(self) -> tuple[LoadRow, ...]:
        """Requests between warm-up and cool-down, in the order they were due."""
        rows = counted_rows(
            self.requests,
            warmup_seconds=float(self.config.get("warmup_seconds") or 0.0),
            cooldown_seconds=float(self.config.get("cooldown_seconds") or 0.0),
        )
        return tuple(sorted(rows, key=lambda row: row.due_s))

    @classmethod
    def from_dict(cls, data: Any, *, where: str = "load result") -> Self:
        """Read a load result.

        Raises
        ------
        ResultError
            Naming the field and what is expected there.
        """
        if not isinstance(data, Mapping) or data.get("load_version") != LOAD_VERSION:
            raise ResultError(f"{where}.load_version: expected {LOAD_VERSION!r}")
        for name in ("config", "environment", "aggregate"):
            if not isinstance(data.get(name), Mapping):
                raise ResultError(f"{where}.{name}: expected an object")
        if not isinstance(data.get("requests"), list):
            raise ResultError(f"{where}.requests: expected a list")
        return cls(
            run=RunMetadata.from_dict(data.get("run"), where=f"{where}.run"),
            created_at_utc=str(data.get("created_at_utc", "")),
            config=data["config"],
            environment=data["environment"],
            aggregate=data["aggregate"],
            requests=tuple(
                LoadRow.from_dict(row, where=f"{where}.requests[{index}]")
                for index, row in enumerate(data["requests"])
            ),
            engine=data.get("engine"),
        )


def counted_rows(
    rows: Sequence[LoadRow], *, warmup_seconds: float, cooldown_seconds: float
) -> list[LoadRow]:
    """Rows due after their session's warm-up and before the run's cool-down."""
    last = max((row.due_s for row in rows), default=0.0)
    return [
        row
        for row in rows
        if row.due_s - row.session_s >= warmup_seconds and row.due_s <= last - cooldown_seconds
    ]


def summarise_load(
    rows: Sequence[LoadRow],
    objective: Objective,
    *,
    warmup_seconds: float = 0.0,
    cooldown_seconds: float = 0.0,
) -> dict[str, Any]:
    """Aggregate a load run over its counted window.

    Goodput is the rate of requests that were answered and met the objective, per second.
    """
    counted = counted_rows(rows, warmup_seconds=warmup_seconds, cooldown_seconds=cooldown_seconds)
    seconds = _window_seconds(counted)
    done = [row for row in counted if row.error is None]
    good = [row for row in counted if objective.met(row)]

    def rate(count: float) -> float | None:
        return count / seconds if seconds else None

    return {
        "requests_sent": len(rows),
        "requests_counted": len(counted),
        "sessions": len({row.session_s for row in rows}),
        "completed": len(done),
        "failed": len(counted) - len(done),
        "window_seconds": seconds,
        "offered_requests_per_second": rate(len(counted)),
        "requests_per_second": rate(len(done)),
        "output_tokens_per_second": rate(sum(row.output_tokens or 0 for row in done)),
        "goodput_requests_per_second": rate(len(good)),
        "slo_attainment": len(good) / len(counted) if counted else None,
        "slo": objective.to_dict(),
        "ttft_ms": _shape([row.ttft_ms for row in done]),
        "tpot_ms": _shape([row.tpot_ms for row in done]),
        "gap_ms": _shape([gap for row in done for gap in row.gaps_ms]),
        "latency_ms": _shape([row.latency_ms for row in done]),
        "lag_ms": _shape([row.lag_ms for row in counted]),
    }


def _window_seconds(counted: Sequence[LoadRow]) -> float:
    """From the first due time to the last token, summed over sessions."""
    sessions: dict[float, list[LoadRow]] = {}
    for row in counted:
        sessions.setdefault(row.session_s, []).append(row)
    return sum(
        max(row.end_s for row in rows) - min(row.due_s for row in rows)
        for rows in sessions.values()
    )


def _shape(values: Sequence[float | None]) -> dict[str, Any] | None:
    shape = statistics.distribution([value for value in values if value is not None])
    return None if shape is None else shape.to_dict()
