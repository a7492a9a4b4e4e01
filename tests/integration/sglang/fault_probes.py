"""Planting faults inside the scheduler's process."""

from __future__ import annotations

from typing import Any

from semblend.core import faults
from semblend.core.faults import FaultPoint
from semblend.core.ledger import LedgerTotals


def plant(host: Any, spec: str, seed: int = 0) -> None:
    host.memory["planted"] = faults.planted(spec, seed=seed)
    host.memory["faults"] = host.memory["planted"].__enter__()


def mend(host: Any) -> dict[FaultPoint, int]:
    """End what was planted; how often each point fired."""
    host.memory.pop("planted").__exit__(None, None, None)
    return dict(host.memory.pop("faults").fired)


def totals(host: Any) -> LedgerTotals:
    return host.side.provider.pipeline.ledger.totals()


def ledger(host: Any) -> dict[str, Any]:
    totals = host.side.provider.pipeline.ledger.totals()
    return {
        "open": totals.open_requests,
        "materialised": totals.tokens["materialised"],
        "reasons": {reason.value: count for reason, count in totals.reasons.items()},
    }
