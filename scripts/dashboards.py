"""Writes the Grafana dashboards in deploy/grafana, and the chart's copies of them and the rules.

The fleet's dashboard is made by hand; those of single engines are alike and generated here.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
GRAFANA = ROOT / "deploy" / "grafana"
RULES = ROOT / "deploy" / "prometheus" / "semblend-rules.yaml"
CHART = ROOT / "deploy" / "helm" / "semblend"
RATE = "[$__rate_interval]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel: title, description, unit and its (legend, expression) pairs."""

    title: str
    text: str
    unit: str
    lines: tuple[tuple[str, str], ...]
    kind: str = "timeseries"


def engine_panels(prefix: str, label: str) -> list[Panel]:
    """What vLLM and SGLang both export; `label` is the label of a token's source."""
    return [
        Panel(
            title="Certified",
            text="1 while a quality certificate allows reuse.",
            unit="none",
            kind="stat",
            lines=(("{{instance}}", f"{prefix}certified"),),
        ),
        Panel(
            title="Certificate expires in",
            text="An alert fires below 14 days. Empty without a certificate.",
            unit="s",
            kind="stat",
            lines=(
                (
                    "{{instance}}",
                    f"({prefix}certificate_expiry_timestamp_seconds > 0) - time()",
                ),
            ),
        ),
        Panel(
            title="Mode, and whether K/V is loaded",
            text="loading is 0 in discovery mode and where reuse was turned off.",
            unit="none",
            kind="stat",
            lines=(
                ("{{instance}} {{mode}}", f"{prefix}mode"),
                ("{{instance}} loading", f"{prefix}loading"),
            ),
        ),
        Panel(
            title="Prompt tokens by source",
            text="Where their K/V came from. reusable is a part of computed: what a certificate "
            "would save.",
            unit="short",
            lines=((f"{{{{{label}}}}}", f"sum by ({label}) (rate({prefix}tokens_total{RATE}))"),),
        ),
        Panel(
            title="Requests by outcome",
            text="As the engine confirmed them.",
            unit="reqps",
            lines=(("{{outcome}}", f"sum by (outcome) (rate({prefix}requests_total{RATE}))"),),
        ),
        Panel(
            title="Declines by reason",
            text="Why tokens were computed rather than reused.",
            unit="reqps",
            lines=(("{{reason}}", f"sum by (reason) (rate({prefix}declines_total{RATE}))"),),
        ),
        Panel(
            title="Index",
            text="Bytes of the donor index and their cap.",
            unit="bytes",
            lines=(
                ("{{instance}} used", f"{prefix}index_bytes"),
                ("{{instance}} cap", f"{prefix}index_capacity_bytes"),
            ),
        ),
        Panel(
            title="Donors",
            text="Donors that can be found.",
            unit="short",
            lines=(("{{instance}}", f"{prefix}donors"),),
        ),
        Panel(
            title="Lookup time, p50 and p99",
            text="Time to plan a prompt.",
            unit="s",
            lines=_quantiles(f"{prefix}lookup_seconds"),
        ),
    ]


def external_panels(prefix: str) -> list[Panel]:
    """What adapters time in addition."""
    return [
        Panel(
            title=f"Time of {name}, p50 and p99",
            text=text,
            unit="s",
            lines=_quantiles(f"{prefix}{name}_seconds"),
        )
        for name, text in (
            ("load", "Copying and rotating a step's spans."),
            ("nested", "A step's pass over holes."),
        )
    ]


def vllm() -> list[Panel]:
    """vLLM's dashboard."""
    prefix = "vllm:semblend_"
    return [
        *engine_panels(prefix, "source"),
        *external_panels(prefix),
        Panel(
            title="Queues",
            text="Waiting captures and shadow samples; steps that requests waited.",
            unit="short",
            lines=(
                ("captures {{instance}}", f"{prefix}captures_waiting"),
                ("samples {{instance}}", f"{prefix}shadow_waiting"),
                ("deferred steps", f"sum(rate({prefix}deferred_steps_total{RATE}))"),
            ),
        ),
        Panel(
            title="Suspended namespaces",
            text="Namespaces in which shadow samples turned reuse off.",
            unit="none",
            kind="stat",
            lines=(("{{instance}}", f"{prefix}suspended_namespaces"),),
        ),
        Panel(
            title="Shadow samples",
            text="Reused requests that were also computed cold.",
            unit="reqps",
            lines=(("samples", f"sum(rate({prefix}shadow_samples_total{RATE}))"),),
        ),
        Panel(
            title="Shadow disagreement and divergence, mean",
            text="Share of compared tokens unlike cold's, and KL in nats.",
            unit="none",
            lines=tuple(
                (
                    name,
                    f"sum(rate({prefix}shadow_{name}_sum{RATE})) "
                    f"/ sum(rate({prefix}shadow_{name}_count{RATE}))",
                )
                for name in ("disagreement", "divergence")
            ),
        ),
        Panel(
            title="Donors kept, dropped, skipped; loads failed",
            text="A failed load is computed exactly instead.",
            unit="reqps",
            lines=tuple(
                (name.replace("_", " "), f"sum(rate({prefix}{name}_total{RATE}))")
                for name in (
                    *("donors_registered", "donors_dropped", "captures_skipped"),
                    *("load_failures", "donors_fetched", "donors_shared", "fetches_failed"),
                )
            ),
        ),
        Panel(
            title="Captured K/V",
            text="Bytes copied for donors, over all ranks.",
            unit="Bps",
            lines=(("bytes", f"sum(rate({prefix}capture_bytes_total{RATE}))"),),
        ),
    ]


def sglang() -> list[Panel]:
    """SGLang's dashboard."""
    prefix = "sglang:semblend_"
    return [
        *engine_panels(prefix, "source"),
        *external_panels(prefix),
        Panel(
            title="Queue",
            text="Prompts waiting to be captured; admissions deferred by a step.",
            unit="short",
            lines=(
                ("captures {{instance}}", f"{prefix}captures_waiting"),
                ("waits", f"sum(rate({prefix}waits_total{RATE}))"),
            ),
        ),
        Panel(
            title="Donors kept, evicted, lost, skipped; loads failed",
            text="A failed load is computed exactly instead.",
            unit="reqps",
            lines=tuple(
                (name.replace("_", " "), f"sum(rate({prefix}{name}_total{RATE}))")
                for name in (
                    *("donors_registered", "donors_evicted", "donors_lost", "donors_skipped"),
                    "load_failures",
                )
            ),
        ),
    ]


def server() -> list[Panel]:
    """The embedded server's dashboard."""
    prefix = "semblend:"
    return [
        *engine_panels(prefix, "stage"),
        Panel(
            title="Time to first token, p50 and p99",
            text="From submission, by outcome.",
            unit="s",
            lines=_quantiles(f"{prefix}time_to_first_token_seconds", by="outcome"),
        ),
        Panel(
            title="Queues",
            text="Requests running, waiting for a slot, and prompts waiting to be captured.",
            unit="short",
            lines=tuple(
                (f"{name.replace('_', ' ')} {{{{instance}}}}", prefix + name)
                for name in (
                    *("running_requests", "waiting_requests", "queued_requests"),
                    "captures_waiting",
                )
            ),
        ),
        Panel(
            title="Suspended namespaces",
            text="Namespaces in which shadow samples turned reuse off.",
            unit="none",
            kind="stat",
            lines=(("{{instance}}", f"{prefix}suspended_namespaces"),),
        ),
        Panel(
            title="Shadow samples",
            text="Reused requests also computed cold, and how much the two differ.",
            unit="none",
            lines=(
                ("samples per second", f"sum(rate({prefix}shadow_samples_total{RATE}))"),
                ("disagreement {{instance}}", f"{prefix}shadow_disagreement"),
                ("divergence {{instance}}", f"{prefix}shadow_divergence"),
            ),
        ),
        Panel(
            title="Donor K/V by tier",
            text="Bytes held and their cap.",
            unit="bytes",
            lines=(
                ("{{tier}} used", f"sum by (tier) ({prefix}tier_bytes)"),
                ("{{tier}} cap", f"sum by (tier) ({prefix}tier_capacity_bytes)"),
            ),
        ),
        Panel(
            title="Donors registered, evicted, skipped",
            text="Skipped: too many prompts were waiting to be captured.",
            unit="reqps",
            lines=tuple(
                (name.replace("_", " "), f"sum(rate({prefix}{name}_total{RATE}))")
                for name in ("donor_registrations", "donor_evictions", "captures_skipped")
            ),
        ),
        Panel(
            title="Free pages of the pool",
            text="Running requests and the exact prefix cache share it.",
            unit="short",
            lines=(
                ("free {{instance}}", f"{prefix}pool_pages_free"),
                ("all {{instance}}", f"{prefix}pool_pages"),
            ),
        ),
        Panel(
            title="HTTP responses",
            text="By status.",
            unit="reqps",
            lines=(("{{status}}", f"sum by (status) (rate({prefix}http_responses_total{RATE}))"),),
        ),
    ]


def _quantiles(metric: str, by: str = "") -> tuple[tuple[str, str], ...]:
    grouped = ", ".join(filter(None, ("le", by)))
    legend = f" {{{{{by}}}}}" if by else ""
    return tuple(
        (
            f"p{int(100 * q)}{legend}",
            f"histogram_quantile({q}, sum by ({grouped}) (rate({metric}_bucket{RATE})))",
        )
        for q in (0.5, 0.99)
    )


def dashboard(uid: str, title: str, panels: list[Panel]) -> dict[str, Any]:
    """Grafana's JSON: three panels per row."""
    return {
        "uid": uid,
        "title": title,
        "tags": ["semblend"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {
                    "name": "datasource",
                    "type": "datasource",
                    "query": "prometheus",
                    "label": "Data source",
                    "current": {},
                }
            ]
        },
        "annotations": {"list": []},
        "panels": [_drawn(number, panel) for number, panel in enumerate(panels)],
    }


def _drawn(number: int, panel: Panel) -> dict[str, Any]:
    return {
        "id": number + 1,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "gridPos": {"x": number % 3 * 8, "y": number // 3 * 7, "w": 8, "h": 7},
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}}
        if panel.kind == "timeseries"
        else {},
        "targets": [
            {"refId": chr(ord("A") + index), "expr": expression, "legendFormat": legend}
            for index, (legend, expression) in enumerate(panel.lines)
        ],
    }


def made() -> dict[str, str]:
    """Every file's name and text."""
    boards = (
        ("semblend-server", "SemBlend server", server()),
        ("semblend-vllm", "SemBlend in vLLM", vllm()),
        ("semblend-sglang", "SemBlend in SGLang", sglang()),
    )
    return {
        f"{uid}.json": json.dumps(dashboard(uid, title, panels), indent=1) + "\n"
        for uid, title, panels in boards
    }


def main() -> None:
    for name, text in made().items():
        (GRAFANA / name).write_text(text, encoding="utf-8")
    for path in GRAFANA.glob("*.json"):
        shutil.copyfile(path, CHART / "dashboards" / path.name)
    (CHART / "rules").mkdir(exist_ok=True)
    shutil.copyfile(RULES, CHART / "rules" / RULES.name)


if __name__ == "__main__":
    main()
