"""Alerts and dashboards name what a running server exports, and every alert has its runbook."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import httpx
import pytest

from semblend.fleet.directory.directory import Directory
from semblend.serve.gateway.gateway_metrics import GatewayMetrics
from semblend.serve.gateway.options import GatewayOptions
from semblend.serve.gateway.worker_pool import WorkerPool
from tests.deployed_metrics import DASHBOARDS, DEPLOY, RULES, expressions, missing, named, rules

ROOT = Path(__file__).resolve().parents[2]
CHART = DEPLOY / "helm" / "semblend"


def gateway_scrape() -> str:
    options = GatewayOptions(workers=(("a", "http://localhost:1"),))
    body, _ = GatewayMetrics(Directory(), WorkerPool(options, httpx.AsyncClient())).render()
    return body.decode()


def test_a_running_server_and_a_gateway_export_every_metric_named(server):
    scraped = httpx.get(f"{server.url}/metrics").text
    assert len(named("semblend:")) > 40
    assert not missing("semblend:", scraped + gateway_scrape())


def test_the_check_finds_a_metric_that_nobody_exports(monkeypatch):
    monkeypatch.setattr(
        "tests.deployed_metrics.rules", lambda: [{"alert": "X", "expr": "semblend:no_such > 0"}]
    )
    assert missing("semblend:no", "semblend:tokens_total 1\n") == {"semblend:no_such": "X"}


def test_every_alert_has_a_section_in_the_runbook_and_no_section_is_left_over():
    text = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")
    sections = re.findall(r"^## (\S+)$", text, re.M)
    assert sections == [rule["alert"] for rule in rules()]
    for rule in rules():
        anchor = rule["annotations"]["runbook_url"]
        assert anchor == f"docs/runbook.md#{rule['alert'].lower()}"
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert rule["annotations"]["summary"]


def test_every_engine_is_watched_for_its_certificate():
    by_name = {rule["alert"]: rule["expr"] for rule in rules()}
    for alert in ("SemBlendCertificateExpiring", "SemBlendCertificateGone"):
        for prefix in ("semblend:", "vllm:semblend_", "sglang:semblend_"):
            assert f"{prefix}certif" in by_name[alert]
    for board in ("semblend-server", "semblend-vllm", "semblend-sglang"):
        text = "".join(e for where, e in expressions().items() if where.startswith(board))
        for name in ("certified", "certificate_expiry_timestamp_seconds", "captures_waiting"):
            assert name in text, (board, name)


@pytest.mark.parametrize("expression", expressions().values(), ids=expressions().keys())
def test_expressions_close_what_they_open(expression):
    for opening, closing in ("()", "[]", "{}"):
        assert expression.count(opening) == expression.count(closing)


def test_dashboards_are_what_the_script_writes_and_the_chart_has_the_same(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    sys.modules.pop("dashboards", None)
    import dashboards

    for name, text in dashboards.made().items():
        assert (DEPLOY / "grafana" / name).read_text(encoding="utf-8") == text, (
            "python scripts/dashboards.py writes it"
        )
    for path in DASHBOARDS:
        panels = json.loads(path.read_text(encoding="utf-8"))["panels"]
        assert len({panel["id"] for panel in panels}) == len(panels)
        assert (CHART / "dashboards" / path.name).read_bytes() == path.read_bytes()
    assert (CHART / "rules" / RULES.name).read_bytes() == RULES.read_bytes()
