"""What the page shows: metadata of recent requests, never a word of their text.

Views carry a sequence number that grows with every change, so that a page asks
only for what is new. A caller sees its own tenant's requests unless it may see all.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from semblend.core.outcomes import Outcome
from semblend.engine.api import RequestReport, TokenSource
from semblend.serve.auth import Caller, Pseudonyms
from semblend.serve.reports import reuse_report


@dataclass(slots=True, kw_only=True)
class RequestView:
    """One request as the page draws it."""

    key: int
    request_id: str
    tenant: str | None
    endpoint: str
    stream: bool
    started_at: float
    state: str = "queued"
    """queued, running, finished, cancelled or failed."""
    seq: int = 0
    prompt_tokens: int = 0
    report: dict[str, Any] | None = None
    strip: list[list[Any]] = field(default_factory=list)
    """[start, end, source, donor number or None] for each run of prompt tokens."""
    output_tokens: int = 0


@dataclass(slots=True)
class Tally:
    """Counts of one tenant's (or everybody's) finished requests."""

    outcomes: Counter[str] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)
    declines: Counter[str] = field(default_factory=Counter)

    def add(self, report: RequestReport) -> None:
        """Count one finished request."""
        self.outcomes[report.outcome.value] += 1
        self.tokens[TokenSource.EXACT.value] += report.exact_tokens
        self.tokens[TokenSource.REUSED.value] += report.reused_tokens
        self.tokens[TokenSource.RECOMPUTED.value] += report.recomputed_tokens
        self.tokens[TokenSource.COMPUTED.value] += report.computed_tokens - report.recomputed_tokens
        if report.reason is not None:
            self.declines[report.reason.value] += 1

    def to_dict(self) -> dict[str, dict[str, int]]:
        """Every outcome and source, zeros included; reasons that occurred."""
        return {
            "outcomes": {outcome.value: self.outcomes[outcome.value] for outcome in Outcome},
            "tokens": {source.value: self.tokens[source.value] for source in TokenSource},
            "declines": dict(self.declines),
        }


class Activity:
    """Recent requests and tallies, bounded; lives on the event loop."""

    MAX_TENANTS = 1024

    def __init__(
        self, names: Pseudonyms, *, limit: int, clock: Callable[[], float] = time.time
    ) -> None:
        self._names = names
        self._limit = limit
        self._clock = clock
        self._views: OrderedDict[int, RequestView] = OrderedDict()
        self._total = Tally()
        self._tallies: OrderedDict[str | None, Tally] = OrderedDict()
        self._seq = 0
        self._keys = 0

    def begin(
        self, *, request_id: str, tenant: str | None, endpoint: str, stream: bool, tokens: int
    ) -> RequestView:
        """A request was accepted and waits for a place."""
        self._keys += 1
        view = RequestView(
            key=self._keys,
            request_id=request_id,
            tenant=tenant,
            endpoint=endpoint,
            stream=stream,
            started_at=self._clock(),
            prompt_tokens=tokens,
        )
        self._views[view.key] = view
        self._touch(view)
        self._forget()
        return view

    def running(self, view: RequestView) -> None:
        """The engine has it."""
        view.state = "running"
        self._touch(view)

    def progress(self, view: RequestView, output_tokens: int) -> None:
        """It has produced so many tokens."""
        view.output_tokens = output_tokens
        self._touch(view)

    def finish(self, view: RequestView, state: str, report: RequestReport | None) -> None:
        """It ended; only a report from the engine is counted."""
        view.state = state
        if report is not None:
            numbers = {donor: number for number, donor in enumerate(report.donor_ids)}
            view.report = reuse_report(report, tenant=view.tenant, names=self._names).model_dump()
            view.strip = [
                [part.start, part.end, part.source.value, numbers.get(part.donor_id or "")]
                for part in report.strip
            ]
            view.output_tokens = report.output_tokens
            self._total.add(report)
            self._tally(view.tenant).add(report)
        self._touch(view)

    def snapshot(self, caller: Caller, *, since: int = 0) -> dict[str, Any]:
        """What `caller` may see of everything that changed after sequence number `since`."""
        visible = [
            view for view in self._views.values() if caller.sees_all or view.tenant == caller.tenant
        ]
        tally = self._total if caller.sees_all else self._tallies.get(caller.tenant, Tally())
        return {
            "cursor": self._seq,
            "oldest": min((view.key for view in visible), default=0),
            "requests": [self._to_dict(view, caller) for view in visible if view.seq > since],
            **tally.to_dict(),
        }

    def _to_dict(self, view: RequestView, caller: Caller) -> dict[str, Any]:
        return {
            "key": view.key,
            "id": view.request_id,
            "tenant": self._names.tenant(view.tenant) if caller.sees_all else None,
            "endpoint": view.endpoint,
            "stream": view.stream,
            "started_at": round(view.started_at, 3),
            "state": view.state,
            "prompt_tokens": view.prompt_tokens,
            "output_tokens": view.output_tokens,
            "report": view.report,
            "strip": view.strip,
        }

    def _touch(self, view: RequestView) -> None:
        self._seq += 1
        view.seq = self._seq

    def _tally(self, tenant: str | None) -> Tally:
        tally = self._tallies.pop(tenant, None) or Tally()
        self._tallies[tenant] = tally
        while len(self._tallies) > self.MAX_TENANTS:
            self._tallies.popitem(last=False)
        return tally

    def _forget(self) -> None:
        """Drop the oldest finished views; those still under way are bounded by admission."""
        if len(self._views) <= self._limit:
            return
        for key, view in self._views.items():
            if view.state not in {"queued", "running"}:
                del self._views[key]
                return
