"""The metrics that alert rules and dashboards name, to be held against what processes export."""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml

DEPLOY = Path(__file__).resolve().parents[1] / "deploy"
RULES = DEPLOY / "prometheus" / "semblend-rules.yaml"
DASHBOARDS = tuple(sorted((DEPLOY / "grafana").glob("*.json")))
_NAME = re.compile(r"\b(?:(?:vllm|sglang):semblend_|semblend:)[a-z0-9_]+")


def rules() -> list[dict]:
    """Every alert."""
    (group,) = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return group["rules"]


def expressions() -> dict[str, str]:
    """Every expression, by where it stands."""
    found = {rule["alert"]: rule["expr"] for rule in rules()}
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text(encoding="utf-8"))["panels"]:
            for target in panel["targets"]:
                found[f"{path.name} {panel['title']} {target['refId']}"] = target["expr"]
    return found


def named(prefix: str) -> dict[str, str]:
    """Metrics whose name begins so, and one place that names each."""
    return {
        name: where
        for where, expression in expressions().items()
        for name in _NAME.findall(expression)
        if name.startswith(prefix)
    }


def exported(text: str) -> set[str]:
    """Names of the series in a scrape, and of the families without any yet."""
    series = set(re.findall(r"^([a-zA-Z_:][\w:]*)(?:\{| )", text, re.M))
    families = set(re.findall(r"^# TYPE (\S+) \S+$", text, re.M))
    histograms = re.findall(r"^# TYPE (\S+) histogram$", text, re.M)
    parts = {f"{name}_{part}" for name in histograms for part in ("bucket", "sum", "count")}
    return series | families | parts


def missing(prefix: str, text: str) -> dict[str, str]:
    """What is named and not exported."""
    there = exported(text)
    return {name: where for name, where in named(prefix).items() if name not in there}
