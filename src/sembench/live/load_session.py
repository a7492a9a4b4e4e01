"""One load run from start to result file: serve donors, send by the schedule, aggregate.

Rows are written to disk as they arrive, so a run that is interrupted or loses its
endpoint can resume the same schedule.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sembench.errors import EndpointError
from sembench.live import prometheus
from sembench.live.engine_counters import EngineCounters
from sembench.live.flags import EngineFlags
from sembench.live.load import LoadOptions, run_load
from sembench.live.patience import HeldFailures
from sembench.live.prompt import EngineClient, Prompt
from sembench.live.scrape import snapshot
from sembench.load_results import LOAD_VERSION, LoadRow, Objective, summarise_load
from sembench.model import ManifestItem
from sembench.progress import progress_bar
from sembench.provenance import environment, utc_now
from sembench.results import RunMetadata
from sembench.spool import Spool


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """What to send, how to judge it, and where the result goes."""

    output: Path
    run: RunMetadata
    config: Mapping[str, Any]
    options: LoadOptions
    objective: Objective
    warmup_seconds: float = 0.0
    """Requests due in a session's first seconds load the endpoint but are not counted."""
    cooldown_seconds: float = 0.0
    """Requests due in the run's last seconds are not counted either."""
    serve_donors: bool = True
    post_donor_delay_ms: float = 0.0
    donor_wait_ms: float = 5000.0
    metrics_urls: Sequence[str] = ()
    flags: EngineFlags = field(default_factory=EngineFlags)
    resume: bool = False
    max_consecutive_errors: int = 100

    def identity(self) -> dict[str, Any]:
        """What must match for an interrupted run to resume: the run and its schedule."""
        arrivals = self.options.arrivals
        return {
            **self.run.identity(),
            "arrival": arrivals.kind.value,
            "rate": arrivals.rate,
            "seed": arrivals.seed,
            "concurrency": self.options.concurrency,
        }


async def run_load_session(
    plan: LoadPlan,
    client: EngineClient,
    items: Sequence[ManifestItem],
    *,
    counters: EngineCounters | None = None,
) -> dict[str, Any]:
    """Run and write the result; return everything in it except the rows."""
    with Spool(plan.output, identity=plan.identity(), resume=plan.resume) as spool:
        done = [LoadRow.from_dict(row, where=str(spool.path)) for row in spool.rows()]
        donors = await _serve_donors(plan, client, items, counters)
        before = await snapshot(plan.metrics_urls) if plan.metrics_urls else None
        failures: HeldFailures[LoadRow] = HeldFailures(
            lambda row: spool.add(row.to_dict()), limit=plan.max_consecutive_errors
        )
        with progress_bar() as bar:
            task = bar.add_task("Sending", total=plan.options.requests, completed=len(done))
            async for row in run_load(client, items, plan.options, done=done):
                failures.add(row)
                bar.advance(task)
        failures.flush()
        after = await snapshot(plan.metrics_urls) if plan.metrics_urls else None
        rows = [LoadRow.from_dict(row, where=str(spool.path)) for row in spool.rows()]
        head = {
            "load_version": LOAD_VERSION,
            "created_at_utc": utc_now(),
            "run": plan.run.to_dict(),
            "config": dict(plan.config),
            "environment": environment(),
            "engine": {
                **plan.flags.to_dict(),
                "prometheus": prometheus.window(before, after) if before and after else None,
            },
            "donors": donors,
            "aggregate": summarise_load(
                rows,
                plan.objective,
                warmup_seconds=plan.warmup_seconds,
                cooldown_seconds=plan.cooldown_seconds,
            ),
        }
        spool.finish(head)
    return head


async def _serve_donors(
    plan: LoadPlan,
    client: EngineClient,
    items: Sequence[ManifestItem],
    counters: EngineCounters | None,
) -> dict[str, int]:
    """Serve all donors, unmeasured. A resumed run repeats this; the endpoint may be new.

    Raises
    ------
    EndpointError
        If no donor is answered.
    """
    donors = [donor for item in items for donor in item.donor_prompts] if plan.serve_donors else []
    failed: list[str] = []
    before = await counters.read() if counters is not None and donors else None
    for number, donor in enumerate(donors):
        request_id = f"sembench-load-donor-{number}-{plan.run.run_id}"
        reply = await client.complete(Prompt(request_id=request_id, text=donor.text, max_tokens=1))
        if reply.error is not None:
            failed.append(reply.error)
    if donors and len(failed) == len(donors):
        raise EndpointError(f"no donor was answered; last error: {failed[-1]}")
    if counters is not None and before is not None:
        answered = len(donors) - len(failed)
        await counters.wait_for_donors(before, answered, plan.donor_wait_ms / 1000.0)
    if donors:
        await asyncio.sleep(plan.post_donor_delay_ms / 1000.0)
    return {"served": len(donors) - len(failed), "failed": len(failed)}
