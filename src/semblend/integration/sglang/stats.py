"""Counters in SGLang's own /metrics, named as SGLang names its metrics."""

from __future__ import annotations

from semblend.integration.prometheus import PrometheusStats

_PLAIN = {
    "donors_registered": "Prompts computed exactly that may be reused from.",
    "donors_skipped": "Prompts not kept because the line of those to be kept was full.",
    "donors_evicted": "Donors forgotten because the tree let go of them.",
    "donors_lost": "Donors that had left the tree when they were to be loaded.",
    "load_failures": "Loads or passes that failed and were computed exactly.",
    "waits": "Admissions put off by one step, for the hole budget or a lost donor.",
}
_TIMES = {
    "lookup": "Time to plan for a prompt, in the scheduler.",
    "load": "Time to find donors, take slots and queue the copies.",
    "nested": "Time to run or queue a step's passes over holes.",
}


def backend_stats(*, export: bool, model: str, mode: str) -> PrometheusStats:
    """The counters; exported where SGLang was started with --enable-metrics.

    SGLang collects the metrics of all its processes from files.
    """
    return PrometheusStats(
        "sglang:semblend_",
        plain=_PLAIN,
        times=_TIMES,
        mode=mode,
        labels={"model_name": model},
        export=export,
    )
