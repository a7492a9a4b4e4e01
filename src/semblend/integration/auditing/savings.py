"""What audit streams say was saved or could be; `semblend report` shows it.

Seconds come from the engine's own prefills: a plan's saving is counted in units of the cost
model, and the stream says how long one unit took (`seconds_per_unit`). Without that, seconds
are unknown unless the user says how long a token takes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from semblend.core.errors import SerialisationError
from semblend.core.json_text import parse_json

_SETTLED = "request_settled"
_COUNTS = ("prompt_tokens", "exact_tokens", "reused_tokens", "reusable_tokens")


@dataclass(slots=True, kw_only=True)
class Share:
    """Totals over some requests (all, a tenant's, or those a document served)."""

    requests: int = 0
    prompt_tokens: int = 0
    exact_tokens: int = 0
    reused_tokens: int = 0
    reusable_tokens: int = 0
    saved_seconds: float = 0.0
    """Prefill time that reuse saved."""
    savable_seconds: float = 0.0
    """Prefill time that reuse would have saved where it was not allowed."""
    savable_gpu_seconds: float = 0.0
    prefill_seconds: float = 0.0
    """What all of these prompts take cold."""

    @property
    def reused_share(self) -> float:
        """Share of all prompt tokens."""
        return self.reused_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def reusable_share(self) -> float:
        """Share of all prompt tokens."""
        return self.reusable_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


@dataclass(slots=True, kw_only=True)
class DonorSavings:
    """A donor, and how much of it others reused or could have."""

    donor_id: str
    requests: int = 0
    tokens: int = 0
    donor_tokens: int | None = None
    """Its own length, if the stream has it."""


@dataclass(slots=True, kw_only=True)
class Savings:
    """Everything `semblend report` shows."""

    total: Share = field(default_factory=Share)
    tenants: dict[str, Share] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)
    """Why requests were computed."""
    documents: list[DonorSavings] = field(default_factory=list)
    first: float = 0.0
    last: float = 0.0
    """Unix times of the first and the last settled request."""
    timed: bool = True
    """Whether seconds are known for all requests."""
    unreadable: int = 0
    """Lines that are not audit records."""

    @property
    def hours(self) -> float:
        """How long the stream covers."""
        return max(0.0, self.last - self.first) / 3600

    @property
    def gpu_hours(self) -> float:
        """GPU-hours that reuse would have saved."""
        return self.total.savable_gpu_seconds / 3600

    def to_dict(self, *, top: int) -> dict[str, Any]:
        """Plain values, for machines."""
        return {
            "schema": "semblend.report.v1",
            "hours": self.hours,
            "seconds_known": self.timed,
            "unreadable_lines": self.unreadable,
            "total": _plain(self.total),
            "gpu_hours_savable": self.gpu_hours,
            "tenants": {name: _plain(share) for name, share in self.tenants.items()},
            "reasons": self.reasons,
            "documents": [
                {
                    "donor_id": each.donor_id,
                    "donor_tokens": each.donor_tokens,
                    "requests": each.requests,
                    "tokens": each.tokens,
                }
                for each in self.documents[:top]
            ],
        }


def audit_files(paths: Iterable[Path]) -> list[Path]:
    """The named files and their rotated versions, oldest first."""
    found: list[Path] = []
    for path in paths:
        aside = [each for each in path.parent.glob(f"{path.name}.*") if each.suffix[1:].isdecimal()]
        found += sorted(aside, key=lambda each: -int(each.suffix[1:]))
        found.append(path)
    return list(dict.fromkeys(found))


def add_up(
    lines: Iterable[str], *, seconds_per_token: float | None = None, gpus: int | None = None
) -> Savings:
    """Read audit records.

    Parameters
    ----------
    seconds_per_token
        Prefill time per token, overriding what the stream says.
    gpus
        GPUs per request, overriding the ranks the stream names.

    Raises
    ------
    SerialisationError
        If the stream settles no request, so nothing can be said.
    """
    savings = Savings()
    settled: list[dict[str, Any]] = []
    lengths: dict[str, int] = {}
    seen: set[tuple[str, int]] = set()
    for record in _records(lines, savings):
        number = (str(record.get("connector_id")), _whole(record.get("event_seq")))
        if number[1] and number in seen:
            continue  # a log shipped twice
        seen.add(number)
        if record.get("event") == _SETTLED:
            settled.append(record)
        elif record.get("event") == "donor_registered":
            lengths[str(record.get("donor_id"))] = _whole(record.get("tokens"))
    if not settled:
        raise SerialisationError(
            "it settles no request: not an audit stream of this release, or no request was sent"
        )
    rates = _rates(settled)
    documents: dict[str, DonorSavings] = {}
    times = [_number(record.get("time")) for record in settled]
    savings.first, savings.last = min(times), max(times)
    for record in settled:
        rate = seconds_per_token or rates.get(str(record.get("connector_id")))
        savings.timed &= rate is not None
        tenant = savings.tenants.setdefault(_tenant(record), Share())
        for share in (savings.total, tenant):
            _add(share, record, rate or 0.0, gpus or max(1, _whole(record.get("ranks"))))
        reason = record.get("settled_reason")
        if isinstance(reason, str):
            savings.reasons[reason] = savings.reasons.get(reason, 0) + 1
        _credit(documents, record, lengths)
    savings.documents = sorted(documents.values(), key=lambda each: -each.tokens)
    savings.tenants = dict(
        sorted(savings.tenants.items(), key=lambda item: -item[1].reusable_tokens)
    )
    savings.reasons = dict(sorted(savings.reasons.items(), key=lambda item: -item[1]))
    return savings


def _records(lines: Iterable[str], savings: Savings) -> Iterator[dict[str, Any]]:
    for line in lines:
        if not line.strip():
            continue
        try:
            record = parse_json(line)
        except (ValueError, RecursionError):
            record = None
        if isinstance(record, dict):
            yield record
        else:
            savings.unreadable += 1


def _rates(settled: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Seconds per unit for each engine: the median of what it reported."""
    said: dict[str, list[float]] = {}
    for record in settled:
        rate = _number(record.get("seconds_per_unit"))
        if rate > 0:
            said.setdefault(str(record.get("connector_id")), []).append(rate)
    return {engine: median(rates) for engine, rates in said.items()}


def _add(share: Share, record: Mapping[str, Any], rate: float, gpus: int) -> None:
    share.requests += 1
    for name in _COUNTS:
        setattr(share, name, getattr(share, name) + _whole(record.get(name)))
    saved = max(0.0, _number(record.get("saved_units"))) * rate
    share.prefill_seconds += _number(record.get("cold_units")) * rate
    if _whole(record.get("reused_tokens")):
        share.saved_seconds += saved
    elif _whole(record.get("reusable_tokens")):
        share.savable_seconds += saved
        share.savable_gpu_seconds += saved * gpus


def _credit(
    documents: dict[str, DonorSavings], record: Mapping[str, Any], lengths: Mapping[str, int]
) -> None:
    given = record.get("tokens_by_donor")
    for donor_id, tokens in given.items() if isinstance(given, dict) else ():
        document = documents.setdefault(
            donor_id, DonorSavings(donor_id=donor_id, donor_tokens=lengths.get(donor_id))
        )
        document.requests += 1
        document.tokens += _whole(tokens)


def _tenant(record: Mapping[str, Any]) -> str:
    """Tenant and namespace: in vLLM and SGLang a salt separates users of one tenant."""
    parts = (record.get("tenant"), record.get("namespace"))
    return " ".join(str(part) for part in parts if part) or "none"


def _plain(share: Share) -> dict[str, Any]:
    return {
        "requests": share.requests,
        "prompt_tokens": share.prompt_tokens,
        "exact_tokens": share.exact_tokens,
        "reused_tokens": share.reused_tokens,
        "reusable_tokens": share.reusable_tokens,
        "reused_share": share.reused_share,
        "reusable_share": share.reusable_share,
        "prefill_seconds": share.prefill_seconds,
        "saved_seconds": share.saved_seconds,
        "savable_seconds": share.savable_seconds,
        "savable_gpu_seconds": share.savable_gpu_seconds,
    }


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    return float(value) if math.isfinite(value) else 0.0
