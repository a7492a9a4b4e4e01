"""One live run from start to result file: verify, warm up, replay, count, write.

Rows are written to disk as they are measured, so a run that is interrupted or loses its
endpoint can continue with ``--resume``.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sembench.comparing import paired
from sembench.comparing.audit_join import join_audit
from sembench.errors import UsageError
from sembench.live import prometheus
from sembench.live.flags import EngineFlags
from sembench.live.order import Numbered, concurrently, spaced
from sembench.live.patience import HeldFailures
from sembench.live.replay import Arm, Replayer
from sembench.live.reply import Reply
from sembench.live.scrape import snapshot
from sembench.manifests.files import count_items, open_text, read_manifest
from sembench.progress import progress_bar
from sembench.provenance import environment
from sembench.result_writer import ResultWriter
from sembench.results import RequestRow, RunMetadata, read_result, write_result


@dataclass(frozen=True, slots=True, kw_only=True)
class LivePlan:
    """What to run and where its result goes."""

    manifest: Path
    output: Path
    run: RunMetadata
    config: Mapping[str, Any]
    arm: Arm
    paired: bool = False
    max_items: int | None = None
    resume: bool = False
    warmup_requests: int = 0
    concurrency: int = 1
    min_donor_gap_requests: int = 0
    metrics_urls: Sequence[str] = ()
    flags: EngineFlags = field(default_factory=EngineFlags)
    connector_audit: Path | None = None
    throughput_output: Path | None = None
    max_consecutive_errors: int = 10
    """Stop after this many failures in a row; 0 never stops."""

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise UsageError(f"--concurrency: expected at least 1, got {self.concurrency}")
        if self.min_donor_gap_requests and self.concurrency > 1:
            raise UsageError(
                "--min-donor-gap-requests orders requests, so it needs --concurrency 1"
            )


async def run_live(plan: LivePlan, replayer: Replayer) -> dict[str, Any]:
    """Run and write the result; return everything in it except the rows."""
    total = count_items(plan.manifest, max_items=plan.max_items)
    before = await _snapshot(plan)
    with ResultWriter(
        plan.output,
        run=plan.run,
        config=plan.config,
        environment=environment(),
        resume=plan.resume,
    ) as writer:
        await replayer.warm_up(plan.warmup_requests, words=_first_words(plan))
        started = time.perf_counter()
        measured = 0
        with progress_bar() as bar:
            task = bar.add_task("Replaying", total=total, completed=writer.resumed_rows)
            failures = HeldFailures(writer.add, limit=plan.max_consecutive_errors)
            async for row in _rows(plan, replayer, _remaining(plan, writer)):
                failures.add(row)
                measured += 1
                bar.advance(task)
            failures.flush()
        seconds = time.perf_counter() - started
        after = await _snapshot(plan)
        rows = list(writer.rows())
        head = writer.finish(
            engine=_engine_section(plan, before, after),
            paired=paired.summarise(rows) if plan.paired else None,
        )
    if plan.connector_audit is not None:
        try:
            with open_text(plan.connector_audit) as stream:
                result = join_audit(read_result(plan.output), stream)
        except OSError as error:
            # The engine may create the file only while it runs, so it cannot be checked earlier.
            raise UsageError(
                f"--connector-audit: {plan.connector_audit}: {error.strerror or error}; "
                f"the result was written without it"
            ) from error
        write_result(plan.output, result)
        head = result.head()
    if plan.throughput_output is not None:
        _write_throughput(plan.throughput_output, rows, measured, seconds, plan.concurrency)
    return head


def _first_words(plan: LivePlan) -> int:
    first = next(read_manifest(plan.manifest, max_items=1), None)
    # A number is several tokens, so a third as many numbers gives about the same length.
    return 0 if first is None else len(first.recipient_prompt.split()) // 3


def _remaining(plan: LivePlan, writer: ResultWriter) -> Iterator[Numbered]:
    for position, item in enumerate(read_manifest(plan.manifest, max_items=plan.max_items)):
        if not writer.is_done(item.item_id, plan.arm):
            yield position, item


async def _rows(
    plan: LivePlan, replayer: Replayer, items: Iterator[Numbered]
) -> AsyncIterator[RequestRow]:
    if plan.min_donor_gap_requests == 0:
        async for row in concurrently(items, replayer.play, limit=plan.concurrency):
            yield row
        return
    served: dict[str, list[Reply]] = {}
    for step in spaced(items, plan.min_donor_gap_requests):
        if step.donor_gap_requests is None:
            served[step.item.item_id] = await replayer.serve_donors(
                step.item, step.position, plan.arm
            )
        else:
            yield await replayer.serve_recipient(
                step.item,
                step.position,
                plan.arm,
                served.pop(step.item.item_id),
                donor_gap_requests=step.donor_gap_requests,
            )


async def _snapshot(plan: LivePlan) -> dict[str, Any] | None:
    return await snapshot(plan.metrics_urls) if plan.metrics_urls else None


def _engine_section(
    plan: LivePlan, before: Mapping[str, Any] | None, after: Mapping[str, Any] | None
) -> dict[str, Any]:
    section: dict[str, Any] = {"arm": plan.arm, **plan.flags.to_dict(), "prometheus": None}
    if before is not None and after is not None:
        section["prometheus"] = prometheus.window(before, after)
    return section


def _write_throughput(
    path: Path, rows: Sequence[RequestRow], measured: int, seconds: float, concurrency: int
) -> None:
    done = [row for row in rows if row.error is None]
    report = {
        "requests": measured,
        "completed": len(done),
        "concurrency": concurrency,
        "wall_seconds": seconds,
        "requests_per_second": measured / seconds if seconds else None,
        "output_tokens_per_second": sum(row.output_tokens or 0 for row in done) / seconds
        if seconds
        else None,
        "prompt_tokens_per_second": sum(
            row.engine_prompt_tokens or row.prompt_tokens for row in done
        )
        / seconds
        if seconds
        else None,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
