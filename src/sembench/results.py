"""The result of a run: one row per request, and the file around the rows.

The format is the public result JSON, version 2; version 1 files can be read too. A
field that was not measured is ``null``, never 0, because gates treat the two differently.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from sembench.errors import ResultError
from sembench.json_text import parse_json

RESULT_VERSION = "sembench.result.v2"
_READABLE = frozenset({"1", "2", "v1", "v2", "sembench.result.v1", RESULT_VERSION})


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRow:
    """Everything measured about one recipient request. Block counts are of full blocks."""

    # Which case it is.
    item_id: str
    dataset: str
    transform: str
    source_id: str = ""
    negative_control: bool = False
    arm: str | None = None
    """``cold``, ``warm`` or ``single``."""
    traffic_class: str | None = None

    # What an exact block cache would have covered.
    prompt_tokens: int = 0
    donor_tokens: int | None = None
    donor_count: int | None = None
    total_blocks: int = 0
    exact_blocks: int = 0
    exact_tokens: int = 0
    exact_block_hit_rate: float = 0.0

    # What a planner proposed (null: no planner ran, or it failed).
    semantic_candidate_blocks: int | None = None
    semantic_candidate_tokens: int | None = None
    semantic_candidate_block_rate: float | None = None
    semantic_candidate_lift: float | None = None
    semantic_eligible_blocks: int | None = None
    semantic_eligible_tokens: int | None = None
    semantic_eligible_block_rate: float | None = None
    semantic_eligible_lift: float | None = None
    planned_donor_ids: tuple[str, ...] | None = None
    planned_spans: int | None = None
    planned_mismatched_tokens: int | None = None
    """Proposed positions whose donor token differs from the recipient's."""
    plan_ms: float | None = None
    block_strip: str | None = None
    """One letter per full block, in prompt order; see :func:`sembench.blocks.block_strip`."""

    # What the backend confirmed (null: it reported nothing).
    cached_tokens: int | None = None
    backend_confirmed_blocks: int | None = None
    backend_confirmed_tokens: int | None = None
    backend_confirmed_block_rate: float | None = None
    backend_confirmed_lift: float | None = None
    fuzzy_confirmed_tokens: int | None = None
    exact_confirmed_tokens: int | None = None
    """What the backend's exact prefix cache served, if it distinguishes exact from semantic."""
    claimed_reuse_tokens: int | None = None
    """Semantic reuse the response claims; a gate compares it with the engine's log or metrics."""
    engine_prompt_tokens: int | None = None
    """The prompt's length as the backend counts it, including the template."""
    external_confirmed_tokens: int | None = None
    external_confirmed_tokens_source: str | None = None
    """``connector_audit`` or ``arm_prometheus_delta``."""
    request_id: str | None = None
    """Our id, sent as ``X-Request-Id``; engines include it in theirs."""
    engine_request_id: str | None = None
    audit_outcome: str | None = None
    audit_decline_reason: str | None = None
    audit_mechanism: str | None = None
    """``scatter``, ``head``, ``external``, ``exact`` or ``none``."""
    audit_boundary_tokens: int | None = None
    audit_supplied_tokens: int | None = None
    audit_materialized_tokens: int | None = None
    audit_similarity: float | None = None

    # What the manifest said would happen.
    expected_exact: bool | None = None
    expected_semantic: bool | None = None
    expected_supplied_tokens: int | None = None
    expected_span_target_start: int | None = None
    expected_no_fact_leak: bool | None = None
    expected_verifier_accept: bool | None = None

    # Route and time.
    route_outcome: str | None = None
    worker_id: str | None = None
    donor_worker_ids: tuple[str, ...] | None = None
    ttft_ms: float | None = None
    latency_ms: float | None = None
    engine_ttft_ms: float | None = None
    queue_time_ms: float | None = None
    flush_contaminated: bool | None = None
    """Whether the cache held something when the item began although it should be empty."""

    # Answer and its quality.
    output_text: str | None = None
    output_tokens: int | None = None
    output_token_ids: tuple[int, ...] | None = None
    output_top_logprobs: list[Any] | None = None
    quality_score: float | None = None
    quality_pass: bool | None = None
    quality_f1: float | None = None
    quality_rouge_l: float | None = None
    donor_fact_leak: bool | None = None
    """Whether the answer states the donor's value instead of the recipient's own."""
    error: str | None = None

    # The same request with empty caches and the comparison with it (paired runs only).
    cold_ttft_ms: float | None = None
    cold_latency_ms: float | None = None
    cold_cached_tokens: int | None = None
    cold_output_text: str | None = None
    cold_quality_score: float | None = None
    cold_quality_pass: bool | None = None
    cold_donor_fact_leak: bool | None = None
    cold_error: str | None = None
    ttft_speedup: float | None = None
    """cold_ttft_ms / ttft_ms of this pair."""
    warm_vs_cold_rouge_l: float | None = None
    warm_vs_cold_kl: float | None = None
    """Mean KL in nats over the positions both arms generated with the same prefix."""

    # The recipient sent again after it was served; a contaminated exact cache shows here.
    repeat_output_text: str | None = None
    repeat_exact_tokens: int | None = None
    repeat_vs_cold_rouge_l: float | None = None
    repeat_contaminated: bool | None = None

    extra: Mapping[str, Any] = field(default_factory=dict)
    """Fields of a file that this version does not know; written back unchanged."""

    def to_dict(self) -> dict[str, Any]:
        row = {name: getattr(self, name) for name in ROW_FIELDS}
        return {**row, **self.extra}

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
        for name in ("item_id", "dataset", "transform"):
            if not isinstance(data.get(name), str):
                raise ResultError(f"{where}.{name}: expected a string")
        for name in _COUNTS:
            value = data.get(name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
                raise ResultError(f"{where}.{name}: expected an integer, got {value!r}")
        for name in _MEASURES:
            value = data.get(name)
            if value is not None and (
                isinstance(value, bool) or not isinstance(value, int | float)
            ):
                raise ResultError(f"{where}.{name}: expected a number, got {value!r}")
        known = {name: data[name] for name in ROW_FIELDS if name in data}
        for name in _TUPLES:
            if known.get(name) is not None:
                known[name] = tuple(known[name])
        extra = {name: value for name, value in data.items() if name not in _ROW_FIELD_SET}
        return cls(**known, extra=extra)


ROW_FIELDS: tuple[str, ...] = tuple(f.name for f in fields(RequestRow) if f.name != "extra")
_ROW_FIELD_SET = frozenset(ROW_FIELDS)
_TYPES = {f.name: str(f.type) for f in fields(RequestRow)}
_COUNTS = tuple(name for name, kind in _TYPES.items() if kind in ("int", "int | None"))
_MEASURES = tuple(name for name, kind in _TYPES.items() if kind in ("float", "float | None"))
_TUPLES = tuple(name for name, kind in _TYPES.items() if kind.startswith("tuple["))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMetadata:
    """Identifies a run: enough to repeat it, or to refuse a comparison."""

    run_id: str
    engine: str
    """``offline``, ``sglang``, ``gateway``, ``load``, …"""
    manifest_path: str | None = None
    manifest_sha256: str | None = None
    arm: str = "single"
    engine_version: str | None = None
    backend_id: str | None = None
    baseline_id: str | None = None
    sembench_version: str = ""
    git_sha: str | None = None
    git_dirty: bool | None = None
    semblend_version: str | None = None
    timestamp_utc: str = ""
    python_version: str = ""
    run_host: str = ""

    def identity(self) -> dict[str, Any]:
        """What must match for two sessions to be one run."""
        return {
            "run_id": self.run_id,
            "engine": self.engine,
            "manifest_sha256": self.manifest_sha256,
        }

    def to_dict(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @classmethod
    def from_dict(cls, data: Any, *, where: str = "run") -> Self:
        """Read metadata; ignore fields this version does not know."""
        if not isinstance(data, Mapping):
            raise ResultError(f"{where}: expected an object")
        for name in ("run_id", "engine"):
            if not isinstance(data.get(name), str):
                raise ResultError(f"{where}.{name}: expected a string")
        return cls(**{f.name: data[f.name] for f in fields(cls) if f.name in data})


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One result file. `aggregate` and `by_transform` are computed from `requests`."""

    run: RunMetadata
    created_at_utc: str
    config: Mapping[str, Any]
    """The flags of the run, including the command line."""
    environment: Mapping[str, Any]
    """``python``, ``platform``, ``host`` and versions of packages."""
    aggregate: Mapping[str, Any]
    by_transform: Mapping[str, Mapping[str, Any]]
    requests: tuple[RequestRow, ...]
    engine: Mapping[str, Any] | None = None
    paired: Mapping[str, Any] | None = None
    result_version: str = RESULT_VERSION

    def head(self) -> dict[str, Any]:
        """Everything except the rows, in file order."""
        return {
            "result_version": self.result_version,
            "created_at_utc": self.created_at_utc,
            "run": self.run.to_dict(),
            "config": dict(self.config),
            "environment": dict(self.environment),
            "engine": None if self.engine is None else dict(self.engine),
            "aggregate": dict(self.aggregate),
            "by_transform": {name: dict(value) for name, value in self.by_transform.items()},
            "paired": None if self.paired is None else dict(self.paired),
        }

    def to_dict(self) -> dict[str, Any]:
        return {**self.head(), "requests": [row.to_dict() for row in self.requests]}

    @classmethod
    def from_dict(cls, data: Any, *, where: str = "result") -> Self:
        """Read a result of version 1 or 2.

        Raises
        ------
        ResultError
            Naming the field and what is expected there.
        """
        if not isinstance(data, Mapping):
            raise ResultError(f"{where}: expected an object")
        if "turns_version" in data:
            raise ResultError(
                f"{where}: this is a run-turns result, not a replay; its rows are turns"
            )
        version = str(data.get("result_version", ""))
        if version not in _READABLE:
            raise ResultError(
                f"{where}.result_version: {version!r} is not a version this program reads "
                f"({RESULT_VERSION!r})"
            )
        for name in ("config", "environment", "aggregate", "by_transform"):
            if not isinstance(data.get(name), Mapping):
                raise ResultError(f"{where}.{name}: expected an object")
        if not isinstance(data.get("requests"), list):
            raise ResultError(f"{where}.requests: expected a list")
        run = data.get("run") or {"run_id": "", "engine": str(data["config"].get("engine", ""))}
        return cls(
            run=RunMetadata.from_dict(run, where=f"{where}.run"),
            created_at_utc=str(data.get("created_at_utc", "")),
            config=data["config"],
            environment=data["environment"],
            aggregate=data["aggregate"],
            by_transform=data["by_transform"],
            requests=tuple(
                RequestRow.from_dict(row, where=f"{where}.requests[{index}]")
                for index, row in enumerate(data["requests"])
            ),
            engine=data.get("engine"),
            paired=data.get("paired"),
            result_version=version,
        )


def read_result(path: Path) -> Result:
    data = read_json(path)
    if isinstance(data, Mapping) and "load_version" in data:
        raise ResultError(
            f"{path}: this is a load result, which only `sembench report` takes; expected a replay"
        )
    return Result.from_dict(data, where=str(path))


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises
    ------
    ResultError
        If the file is missing or is not JSON.
    """
    try:
        with path.open(encoding="utf-8") as stream:
            return parse_json(stream.read())
    except OSError as error:
        raise ResultError(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise ResultError(f"{path}: not JSON ({error})") from error


def write_result(path: Path, result: Result) -> None:
    """Write a result file. It appears under its name only once it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".unfinished")
    text = json.dumps(result.to_dict(), ensure_ascii=False, allow_nan=False, indent=2)
    unfinished.write_text(text + "\n", encoding="utf-8")
    unfinished.replace(path)
