"""Checks a result against the requested gates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sembench.comparing.calibration import Calibration
from sembench.engine_events import EngineSummary
from sembench.errors import UsageError
from sembench.gates.observed import Observed, observe
from sembench.gates.table import BY_NAME, GATES, Requested, Threshold
from sembench.results import Result

CEILING = "noise_floor_calibration"


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """Whether a result passed; each failure starts with its gate's name."""

    result: str
    engine_summaries: tuple[str, ...]
    failures: tuple[str, ...]
    failed_gates: tuple[str, ...]
    observed: Observed
    requested_gates: Mapping[str, Threshold]
    missing_metrics: tuple[str, ...]
    allow_missing: bool

    @property
    def passed(self) -> bool:
        return not self.failures

    def to_dict(self) -> dict[str, Any]:
        return {
            "result": self.result,
            "engine_summaries": list(self.engine_summaries),
            "passed": self.passed,
            "failures": list(self.failures),
            "failed_gates": list(self.failed_gates),
            "observed": self.observed,
            "requested_gates": dict(self.requested_gates),
            "missing_metrics": list(self.missing_metrics),
            "allow_missing": self.allow_missing,
        }


def requested(thresholds: Mapping[str, Threshold | None]) -> tuple[Requested, ...]:
    """The gates requested by name, plus the defaults of the others."""
    unknown = sorted(set(thresholds) - set(BY_NAME))
    if unknown:
        raise UsageError(f"there is no gate {unknown[0]!r}; gates: {', '.join(BY_NAME)}")
    found: list[Requested] = []
    for gate in GATES:
        threshold = thresholds.get(gate.name)
        if threshold is not None:
            found.append(Requested(gate=gate, threshold=threshold))
        elif gate.default is not None:
            found.append(Requested(gate=gate, threshold=gate.default, explicit=False))
    return tuple(found)


def check(
    result: Result,
    summaries: Sequence[EngineSummary],
    gates: Sequence[Requested],
    *,
    calibration: Calibration | None = None,
    allow_missing: bool = False,
    result_name: str = "",
    summary_names: Sequence[str] = (),
) -> GateResult:
    """Check `result` against `gates`."""
    observed = observe(result, summaries, calibration)
    failed: list[tuple[str, str]] = []
    missing: list[str] = []
    for asked in gates:
        gate = asked.gate
        value = observed[gate.metric]
        if value is None:
            if asked.explicit:
                missing.append(gate.metric)
                if not allow_missing:
                    failed.append((gate.name, f"{gate.metric} is absent from the result"))
        elif not gate.holds(value, asked.threshold):
            failed.append((gate.name, f"{gate.metric} is {value}, {gate.demand} {asked.threshold}"))
    if calibration is not None:
        failed.extend(_ceiling(observed))
        if observed["warm_vs_cold_rouge"] is None:
            missing.append("warm_vs_cold_rouge")
            if not allow_missing:
                failed.append((CEILING, "warm_vs_cold_rouge is absent from the result"))
    return GateResult(
        result=result_name,
        engine_summaries=tuple(summary_names),
        failures=tuple(f"{name}: {message}" for name, message in failed),
        failed_gates=tuple(dict.fromkeys(name for name, _ in failed)),
        observed=observed,
        requested_gates={asked.gate.name: asked.threshold for asked in gates},
        missing_metrics=tuple(missing),
        allow_missing=allow_missing,
    )


def _ceiling(observed: Observed) -> list[tuple[str, str]]:
    """Fail answers that are far more alike than two cold runs: they were not generated twice."""
    rouge, ceiling = observed["warm_vs_cold_rouge"], observed["rouge_ceiling"]
    if rouge is None or ceiling is None or rouge <= ceiling:
        return []
    return [(CEILING, f"warm_vs_cold_rouge is {rouge}, above the noise floor's {ceiling}")]
