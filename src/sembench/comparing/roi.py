"""What reuse saves on your own traffic: a cost model over a histogram of prompt lengths.

Times are in milliseconds for one prompt of n tokens::

    cold(n) = prefill_fixed + prefill_per_token * n
    miss(n) = cold(n) + lookup + capture_per_token * n
    hit(n)  = prefill_fixed + lookup + materialize_per_token * s + prefill_per_token * (n - s)
              where s = served_fraction * n

A prompt shorter than `min_prompt_tokens` is not looked up and costs cold(n). A hit is
not captured: its K/V is approximate and must not be donated.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from sembench.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class RoiModel:
    """The coefficients. The defaults are the published ones; measure your own."""

    prefill_fixed_ms: float = 120.0
    prefill_ms_per_token: float = 0.62
    lookup_ms: float = 190.0
    capture_ms_per_token: float = 0.004
    served_fraction: float = 0.85
    materialize_ms_per_token: float = 0.02
    min_prompt_tokens: int = 256

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) < 0:
                flag = field.name.replace("_", "-")
                raise UsageError(f"--{flag}: expected 0 or more, got {getattr(self, field.name)}")
        if self.served_fraction > 1:
            raise UsageError(f"--served-fraction: expected at most 1, got {self.served_fraction}")

    def cold_ms(self, tokens: float) -> float:
        """Prefill without any reuse."""
        return self.prefill_fixed_ms + self.prefill_ms_per_token * tokens

    def miss_ms(self, tokens: float) -> float:
        """A lookup that finds nothing, plus capturing the prompt for later."""
        if tokens < self.min_prompt_tokens:
            return self.cold_ms(tokens)
        return self.cold_ms(tokens) + self.lookup_ms + self.capture_ms_per_token * tokens

    def hit_ms(self, tokens: float) -> float:
        """A prompt mostly served from a donor."""
        if tokens < self.min_prompt_tokens:
            return self.cold_ms(tokens)
        served = self.served_fraction * tokens
        return (
            self.prefill_fixed_ms
            + self.lookup_ms
            + self.materialize_ms_per_token * served
            + self.prefill_ms_per_token * (tokens - served)
        )

    def break_even_hit_rate(self, tokens: float) -> float | None:
        """The hit rate above which reuse pays at this length; None if it never does."""
        overhead = self.miss_ms(tokens) - self.cold_ms(tokens)
        gain = self.miss_ms(tokens) - self.hit_ms(tokens)
        return overhead / gain if gain > 0 and overhead <= gain else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Prompts of about `tokens` tokens: their share of the traffic and their hit rate."""

    tokens: float
    share: float
    hit_rate: float


def parse_pairs(text: str, *, flag: str) -> dict[float, float]:
    """Parse `tokens:value,tokens:value`, or a two-column CSV file with an optional header."""
    path = Path(text)
    if ":" not in text and path.suffix == ".csv":
        try:
            with path.open(encoding="utf-8", newline="") as stream:
                lines = [line for line in csv.reader(stream) if line]
        except OSError as error:
            raise UsageError(f"{flag}: {path}: {error.strerror or error}") from error
        if lines and not _is_number(lines[0][0]):
            lines = lines[1:]
    else:
        lines = [part.split(":") for part in text.split(",") if part.strip()]
    pairs: dict[float, float] = {}
    for parts in lines:
        if len(parts) != 2 or not (_is_number(parts[0]) and _is_number(parts[1])):
            raise UsageError(f"{flag}: expected tokens:value, got {':'.join(parts)!r}")
        tokens = float(parts[0])
        if tokens <= 0 or tokens in pairs:
            raise UsageError(f"{flag}: token counts must be above 0 and unique, got {parts[0]}")
        pairs[tokens] = float(parts[1])
    if not pairs:
        raise UsageError(f"{flag}: expected at least one tokens:value")
    return pairs


def buckets(
    histogram: Mapping[float, float], *, hit_rate: float, by_bucket: Mapping[float, float]
) -> list[Bucket]:
    """Build the traffic; counts are normalized to shares."""
    total = sum(histogram.values())
    if total <= 0 or min(histogram.values()) < 0:
        raise UsageError("--histogram: shares must be 0 or more, and at least one above 0")
    unknown = sorted(set(by_bucket) - set(histogram))
    if unknown:
        raise UsageError(f"--hit-rate-by-bucket: --histogram has no bucket {unknown[0]:g}")
    for rate in (hit_rate, *by_bucket.values()):
        if not 0.0 <= rate <= 1.0:
            raise UsageError(f"--hit-rate: expected 0 to 1, got {rate}")
    return [
        Bucket(tokens=tokens, share=share / total, hit_rate=by_bucket.get(tokens, hit_rate))
        for tokens, share in sorted(histogram.items())
    ]


def estimate(traffic: Sequence[Bucket], model: RoiModel, *, qps: float) -> dict[str, Any]:
    """Estimate what `traffic` saves in prefill time, per bucket and in total."""
    rows: list[dict[str, Any]] = []
    for bucket in traffic:
        cold = model.cold_ms(bucket.tokens)
        looked_up = bucket.tokens >= model.min_prompt_tokens
        rate = bucket.hit_rate if looked_up else 0.0
        reuse = rate * model.hit_ms(bucket.tokens) + (1 - rate) * model.miss_ms(bucket.tokens)
        rows.append(
            {
                "tokens": bucket.tokens,
                "share": bucket.share,
                "hit_rate": rate,
                "cold_ms": cold,
                "hit_ms": model.hit_ms(bucket.tokens),
                "miss_ms": model.miss_ms(bucket.tokens),
                "expected_ms": reuse,
                "saved_ms": cold - reuse,
                "speedup": cold / reuse,
                "hit_speedup": cold / model.hit_ms(bucket.tokens),
                "break_even_hit_rate": model.break_even_hit_rate(bucket.tokens)
                if looked_up
                else None,
            }
        )
    cold_ms = sum(row["share"] * row["cold_ms"] for row in rows)
    reuse_ms = sum(row["share"] * row["expected_ms"] for row in rows)
    saved = cold_ms - reuse_ms
    return {
        "cost_model": {field.name: getattr(model, field.name) for field in fields(model)},
        "qps": qps,
        "buckets": rows,
        "mean_cold_ms": cold_ms,
        "mean_expected_ms": reuse_ms,
        "mean_saved_ms": saved,
        "saved_fraction": saved / cold_ms if cold_ms else 0.0,
        "saved_prefill_seconds_per_second": saved * qps / 1000.0,
        "saved_prefill_hours_per_day": saved * qps * 24 / 1000.0,
        "pays_off": saved > 0,
    }


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
