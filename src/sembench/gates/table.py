"""Every gate, one entry each: its name, its metric and its condition."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Threshold = float | bool
Value = float | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """A named condition on one metric. The command-line flag is its name with dashes."""

    name: str
    metric: str
    holds: Callable[[Value, Threshold], bool]
    demand: str
    """The words between metric and threshold in a failure message."""
    help: str
    default: Threshold | None = None
    """Applied by default if the metric is present; absence is then no failure."""
    takes: type[float] | type[int] | None = float
    """The type its flag takes; None for a switch or if there is no flag."""
    switch: Threshold | None = None
    """The threshold a switch sets."""

    @property
    def has_flag(self) -> bool:
        """Whether the command line offers it."""
        return self.takes is not None or self.switch is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Requested:
    """A gate with its threshold; `explicit` if the user asked for it."""

    gate: Gate
    threshold: Threshold
    explicit: bool = True


def _at_least(value: Value, threshold: Threshold) -> bool:
    return float(value) >= float(threshold)


def _at_most(value: Value, threshold: Threshold) -> bool:
    # A rate computed in floating point may miss its bound by the last bit.
    return float(value) <= float(threshold) + 1e-12


def _is(value: Value, threshold: Threshold) -> bool:
    return bool(value) is bool(threshold)


def _minimum(
    name: str,
    metric: str,
    help: str,  # noqa: A002
    takes: type[float] | type[int] = float,
) -> Gate:
    return Gate(
        name=name, metric=metric, holds=_at_least, demand="at least", help=help, takes=takes
    )


def _maximum(
    name: str,
    metric: str,
    help: str,  # noqa: A002
    default: Threshold | None = None,
    switch: Threshold | None = None,
) -> Gate:
    return Gate(
        name=name,
        metric=metric,
        holds=_at_most,
        demand="at most",
        help=help,
        default=default,
        takes=float if switch is None else None,
        switch=switch,
    )


GATES: tuple[Gate, ...] = (
    _minimum("min_quality_pass_rate", "quality_pass_rate", "Share of answers that must pass."),
    _minimum(
        "min_semantic_placement_rate",
        "semantic_placement_rate",
        "Share of requests routed by semantic placement.",
    ),
    _minimum(
        "min_backend_confirmed_block_rate",
        "backend_confirmed_block_rate",
        "Share of blocks whose reuse the backend confirms.",
    ),
    _minimum(
        "min_materialization_events",
        "materialization_events",
        "Materializations in the engine summaries.",
        takes=int,
    ),
    _minimum(
        "min_materialized_tokens",
        "materialized_tokens",
        "Materialized tokens in the summaries.",
        takes=int,
    ),
    _minimum(
        "min_materialized_units",
        "materialized_units",
        "Materialized pieces in the summaries.",
        takes=int,
    ),
    _maximum(
        "max_negative_control_confirmed_rate",
        "negative_control_confirmed_rate",
        "Unexplained confirmed reuse on negative controls.",
        default=0.0,
    ),
    _maximum(
        "max_negative_control_semantic_placement_rate",
        "negative_control_semantic_placement_rate",
        "Negative controls routed by semantic placement.",
        default=1.0,
    ),
    Gate(
        name="require_materialized_reuse",
        metric="materialized_reuse",
        holds=_is,
        demand="must be",
        help="An engine summary must show a hit and a materialization.",
        takes=None,
        switch=True,
    ),
    _maximum(
        "require_no_engine_errors",
        "engine_errors",
        "No errors in the engine summaries.",
        switch=0,
    ),
    _minimum(
        "min_blended_ttft_speedup",
        "blended_ttft_speedup",
        "Median of paired cold/warm ratios, hits and misses together.",
    ),
    _maximum(
        "max_negative_control_speedup_deviation",
        "negative_control_speedup_deviation",
        "How far the median ratio of negative controls may be from 1.",
    ),
    _maximum(
        "require_contamination_check",
        "propagation_contamination_rate",
        "Recipients were repeated, and no repeat was served approximate K/V as exact.",
        switch=0.0,
    ),
    _maximum(
        "max_warm_vs_cold_rouge_drop",
        "warm_vs_cold_rouge_drop",
        "How far warm-vs-cold ROUGE-L may fall below the noise floor (1 without a calibration).",
    ),
    _maximum(
        "max_donor_fact_leak_rate",
        "donor_fact_leak_rate",
        "Share of fact probes answered with the donor's fact.",
    ),
    _maximum(
        "max_unconfirmed_claim_rate",
        "unconfirmed_claim_rate",
        "Share of claimed semantic tokens that no log, audit or counter confirms.",
    ),
    _maximum("max_request_error_rate", "request_error_rate", "Share of requests that failed."),
    Gate(
        name="aggregate_consistent",
        metric="aggregate_consistent",
        holds=_is,
        demand="must be",
        help="The file's aggregate equals the one computed from its rows.",
        takes=None,
        default=True,
    ),
)

BY_NAME = {gate.name: gate for gate in GATES}
