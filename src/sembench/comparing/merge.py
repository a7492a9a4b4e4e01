"""Merges a cold and a warm result of one manifest into a paired one.

Each warm row gets the cold half of the same item. Results of different manifests or
block sizes are refused because their rows are not comparable.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sembench import metrics, quality
from sembench.comparing import paired
from sembench.errors import ResultError
from sembench.results import RequestRow, Result


def merge(cold: Result, warm: Result, *, allow_unpaired: bool = False) -> Result:
    """Merge two arms into a paired result.

    Raises
    ------
    ResultError
        If the manifests differ, or (unless allowed) only one arm has an item.
    """
    _check_comparable(cold, warm)
    by_item = {row.item_id: row for row in cold.requests}
    alone = {row.item_id for row in warm.requests} ^ set(by_item)
    if alone and not allow_unpaired:
        raise ResultError(
            f"{len(alone)} items are in only one of the two results (first: {min(alone)}); "
            f"--allow-unpaired merges the others"
        )
    rows = tuple(
        _merged(by_item[row.item_id], row) for row in warm.requests if row.item_id in by_item
    )
    return replace(
        warm,
        run=replace(warm.run, arm="warm", baseline_id=cold.run.backend_id or cold.run.run_id),
        config={**warm.config, "cold_run_id": cold.run.run_id, "unpaired_items": len(alone)},
        requests=rows,
        aggregate=metrics.aggregate(rows),
        by_transform=metrics.by_transform(rows),
        engine={**(warm.engine or {}), "cold": cold.engine},
        paired=paired.summarise(rows),
    )


def _check_comparable(cold: Result, warm: Result) -> None:
    pairs: list[tuple[str, Any, Any]] = [
        ("manifest_sha256", cold.run.manifest_sha256, warm.run.manifest_sha256),
        ("block_size", cold.config.get("block_size"), warm.config.get("block_size")),
        ("model", cold.config.get("model"), warm.config.get("model")),
    ]
    for name, before, after in pairs:
        if before != after:
            raise ResultError(f"{name}: the cold result has {before!r}, the warm one has {after!r}")


def _merged(cold: RequestRow, warm: RequestRow) -> RequestRow:
    both = cold.error is None and warm.error is None
    texts = (warm.output_text, cold.output_text)
    contaminated = cold.flush_contaminated
    if contaminated is None and cold.cached_tokens is not None:
        contaminated = cold.cached_tokens > 0
    return replace(
        warm,
        arm="warm",
        cold_ttft_ms=cold.ttft_ms,
        cold_latency_ms=cold.latency_ms,
        cold_cached_tokens=cold.cached_tokens,
        cold_output_text=cold.output_text,
        cold_quality_score=cold.quality_score,
        cold_quality_pass=cold.quality_pass,
        cold_donor_fact_leak=cold.donor_fact_leak,
        cold_error=cold.error,
        flush_contaminated=contaminated,
        ttft_speedup=cold.ttft_ms / warm.ttft_ms
        if both and cold.ttft_ms and warm.ttft_ms
        else None,
        warm_vs_cold_rouge_l=quality.rouge_l(texts[0], texts[1])
        if both and texts[0] is not None and texts[1] is not None
        else None,
    )
