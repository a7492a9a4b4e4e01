"""What the page shows: metadata of recent requests, never their text.

Views carry a sequence number that grows with every change, so a page asks only for what
is new. Callers see their own tenant's requests unless they may see all. Every number shown
to a tenant (keys, cursors) is counted for that tenant alone, and what is remembered about
it depends on nobody else: gaps would reveal other tenants' requests.
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
    """Counts all requests; shown to callers who may see all."""
    own_key: int
    """Counts this tenant's requests."""
    request_id: str
    tenant: str | None
    endpoint: str
    stream: bool
    started_at: float
    state: str = "queued"
    """queued, running, finished, cancelled or failed."""
    seq: int = 0
    own_seq: int = 0
    prompt_tokens: int = 0
    report: dict[str, Any] | None = None
    strip: list[list[Any]] = field(default_factory=list)
    """[start, end, source, donor number or None] for each run of prompt tokens."""
    found: list[list[int]] = field(default_factory=list)
    """[start, end] of runs that discovery found in donors but that were computed."""
    output_tokens: int = 0

    @property
    def under_way(self) -> bool:
        return self.state in {"queued", "running"}


@dataclass(slots=True)
class Tally:
    """Counts of finished requests, for one tenant or for all."""

    outcomes: Counter[str] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)
    declines: Counter[str] = field(default_factory=Counter)
    reusable_tokens: int = 0
    """Computed tokens that donors held, as reported by discovery alone."""

    def add(self, report: RequestReport) -> None:
        self.outcomes[report.outcome.value] += 1
        self.tokens[TokenSource.EXACT.value] += report.exact_tokens
        self.tokens[TokenSource.CONTINUED.value] += report.continued_tokens
        self.tokens[TokenSource.REUSED.value] += report.reused_tokens
        self.tokens[TokenSource.RECOMPUTED.value] += report.recomputed_tokens
        self.tokens[TokenSource.COMPUTED.value] += report.computed_tokens - report.recomputed_tokens
        self.reusable_tokens += sum(end - start for start, end in report.found)
        if report.reason is not None:
            self.declines[report.reason.value] += 1

    def to_dict(self) -> dict[str, Any]:
        """Every outcome and source, including zeros, and the reasons that occurred."""
        return {
            "outcomes": {outcome.value: self.outcomes[outcome.value] for outcome in Outcome},
            "tokens": {source.value: self.tokens[source.value] for source in TokenSource},
            "declines": dict(self.declines),
            "reusable_tokens": self.reusable_tokens,
        }


@dataclass(slots=True)
class _Feed:
    """One tenant's recent requests, with their own numbering."""

    views: OrderedDict[int, RequestView] = field(default_factory=OrderedDict)
    tally: Tally = field(default_factory=Tally)
    keys: int = 0
    seq: int = 0

    @property
    def busy(self) -> bool:
        return any(view.under_way for view in self.views.values())


class Activity:
    """Recent requests and counts, bounded; used only on the event loop."""

    MAX_TENANTS = 1024
    MAX_VIEWS = 20_000
    """Limit on views in total; above it the tenant idle longest is dropped."""

    def __init__(
        self, names: Pseudonyms, *, limit: int, clock: Callable[[], float] = time.time
    ) -> None:
        """Remember at most `limit` finished requests per tenant."""
        self._names = names
        self._limit = limit
        self._clock = clock
        self._total = Tally()
        self._feeds: OrderedDict[str | None, _Feed] = OrderedDict()
        self._held = 0
        self._seq = 0
        self._keys = 0

    def begin(
        self, *, request_id: str, tenant: str | None, endpoint: str, stream: bool, tokens: int
    ) -> RequestView:
        """A request was accepted and is waiting for a slot."""
        feed = self._feed(tenant)
        self._keys += 1
        feed.keys += 1
        view = RequestView(
            key=self._keys,
            own_key=feed.keys,
            request_id=request_id,
            tenant=tenant,
            endpoint=endpoint,
            stream=stream,
            started_at=self._clock(),
            prompt_tokens=tokens,
        )
        feed.views[view.key] = view
        self._held += 1
        self._touch(view)
        self._trim(feed)
        self._forget_tenants()
        return view

    def running(self, view: RequestView) -> None:
        """The engine started the request."""
        view.state = "running"
        self._touch(view)

    def progress(self, view: RequestView, output_tokens: int) -> None:
        """The request has produced this many tokens."""
        view.output_tokens = output_tokens
        self._touch(view)

    def finish(self, view: RequestView, state: str, report: RequestReport | None) -> None:
        """The request ended; it is counted only if the engine sent a report."""
        view.state = state
        if report is not None:
            numbers = {donor: number for number, donor in enumerate(report.donor_ids)}
            view.report = reuse_report(report, tenant=view.tenant, names=self._names).model_dump()
            view.strip = [
                [part.start, part.end, part.source.value, numbers.get(part.donor_id or "")]
                for part in report.strip
            ]
            view.found = [[start, end] for start, end in report.found]
            view.output_tokens = report.output_tokens
            self._total.add(report)
            self._feed(view.tenant).tally.add(report)
        self._touch(view)

    def snapshot(self, caller: Caller, *, since: int = 0) -> dict[str, Any]:
        """What `caller` may see of everything that changed after `since`."""
        if caller.sees_all:
            views = [view for feed in self._feeds.values() for view in feed.views.values()]
            views = sorted(views, key=lambda view: view.key)[-self._limit :]
            return {
                "cursor": self._seq,
                "oldest": min((view.key for view in views), default=0),
                "requests": [
                    {
                        **_facts(view),
                        "key": view.key,
                        "tenant": self._names.tenant(view.tenant),
                    }
                    for view in views
                    if view.seq > since
                ],
                **self._total.to_dict(),
            }
        feed = self._feeds.get(caller.tenant) or _Feed()
        own = feed.views.values()
        return {
            "cursor": feed.seq,
            "oldest": min((view.own_key for view in own), default=0),
            "requests": [
                {**_facts(view), "key": view.own_key, "tenant": None}
                for view in own
                if view.own_seq > since
            ],
            **feed.tally.to_dict(),
        }

    def _touch(self, view: RequestView) -> None:
        self._seq += 1
        view.seq = self._seq
        feed = self._feed(view.tenant)
        feed.seq += 1
        view.own_seq = feed.seq

    def _feed(self, tenant: str | None) -> _Feed:
        """The tenant's feed, marked as recently used."""
        feed = self._feeds.setdefault(tenant, _Feed())
        self._feeds.move_to_end(tenant)
        return feed

    def _trim(self, feed: _Feed) -> None:
        """Drop the oldest finished view; admission already bounds the unfinished ones."""
        if len(feed.views) <= self._limit:
            return
        for key, view in feed.views.items():
            if not view.under_way:
                del feed.views[key]
                self._held -= 1
                return

    def _forget_tenants(self) -> None:
        while len(self._feeds) > self.MAX_TENANTS or self._held > self.MAX_VIEWS:
            idle = next((name for name, feed in self._feeds.items() if not feed.busy), None)
            if idle is None or idle == next(reversed(self._feeds)):
                return
            self._held -= len(self._feeds.pop(idle).views)


def _facts(view: RequestView) -> dict[str, Any]:
    return {
        "id": view.request_id,
        "endpoint": view.endpoint,
        "stream": view.stream,
        "started_at": round(view.started_at, 3),
        "state": view.state,
        "prompt_tokens": view.prompt_tokens,
        "output_tokens": view.output_tokens,
        "report": view.report,
        "strip": view.strip,
        "found": view.found,
    }
