"""Promise: every option, metric and header is documented, and every documented one exists."""

from __future__ import annotations

import re

import typer

from semblend.cli.serve import serve
from semblend.core.outcomes import Outcome
from semblend.engine.api import RequestReport
from semblend.serve.auth import Pseudonyms
from semblend.serve.entry_queue import EntryQueue
from semblend.serve.openai.replies import ReuseReport
from semblend.serve.options import ServeOptions
from semblend.serve.reports import reuse_headers, reuse_report
from semblend.serve.watch.server_metrics import ServerMetrics
from tests.serve.fakes import ScriptedEngine
from tests.serve.support import ROOT

TEXT = (ROOT / "docs" / "serve.md").read_text(encoding="utf-8")


def test_options_and_documentation_agree() -> None:
    app = typer.Typer()
    app.command()(serve)
    options = {
        name
        for parameter in typer.main.get_command(app).params
        for name in parameter.opts
        if name.startswith("--")
        and name not in {"--help", "--install-completion", "--show-completion"}
    }
    documented = set(re.findall(r"^\| `(--[a-z-]+)` \|", TEXT, re.MULTILINE))
    assert documented == options


def test_metrics_and_documentation_agree(scripted: ScriptedEngine) -> None:
    metrics = ServerMetrics(scripted, EntryQueue(ServeOptions(model_name="m")))
    exposed = {
        family.name + ("_total" if family.type == "counter" else "")
        for family in metrics.registry.collect()
    }
    documented = set(re.findall(r"`(semblend:[a-z_]+)", TEXT))
    assert documented == exposed


def test_headers_and_fields_and_documentation_agree() -> None:
    report = RequestReport(request_id="r", outcome=Outcome.COLD, prompt_tokens=3, similarity=0.5)
    shown = reuse_report(report, tenant=None, names=Pseudonyms("")).model_copy(
        update={"reason": "no_match"}
    )
    headers = set(reuse_headers(shown, final=True))
    assert set(re.findall(r"`(x-semblend-[a-z-]+)`", TEXT)) == headers
    section = TEXT.split("### What comes back")[1].split("### Errors")[0]
    for name in ReuseReport.model_fields:
        assert f"`{name}`" in section, name
