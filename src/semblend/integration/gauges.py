"""The gauges every adapter exports: the same names in every engine's /metrics."""

from __future__ import annotations

from semblend.pipeline import SemBlendPipeline
from semblend.planning.certificates import Standing

GAUGES = {
    "certified": "1 if a quality certificate currently allows reuse.",
    "certificate_expiry_timestamp_seconds": "When the certificate expires, Unix time; 0: none.",
    "loading": "1 while donor K/V may be loaded.",
    "donors": "Donors that can be found.",
    "index_bytes": "Bytes of the donor index.",
    "index_capacity_bytes": "Byte cap of the donor index.",
    "captures_waiting": "Prompts waiting to be captured as donors.",
}
ADAPTER_GAUGES = {
    **GAUGES,
    "suspended_namespaces": "Namespaces in which shadow samples turned reuse off.",
    "shadow_waiting": "Shadow samples not computed yet.",
    "cost_measured": "1 if plans are estimated with times measured on this engine at start.",
    "chains": "Conversations that can be continued over approximate K/V.",
}
"""Gauges of adapters that also take shadow samples and continue conversations."""
MODE = "mode"
MODE_TEXT = "1 for the current mode."


def pipeline_gauges(
    pipeline: SemBlendPipeline, standing: Standing, *, loading: bool, captures_waiting: int
) -> dict[str, float]:
    """Current values of all gauges."""
    stats, until = pipeline.stats(), standing.until
    certified = standing.certificate is not None and pipeline.certified
    values = (
        float(certified),
        0.0 if until is None else until.timestamp(),
        float(loading),
        float(stats.donors),
        float(stats.index_bytes),
        float(stats.index_capacity_bytes),
        float(captures_waiting),
    )
    return dict(zip(GAUGES, values, strict=True))
