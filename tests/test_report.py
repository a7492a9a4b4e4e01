"""`semblend report` answers "what would I save?" from an audit stream, and from nothing else."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from semblend.cli.main import app
from semblend.core.errors import SerialisationError
from semblend.core.ledger import Settlement
from semblend.core.outcomes import DeclineReason, Outcome
from semblend.core.plan import CostEstimate
from semblend.integration.auditing.audit_stream import AuditStream
from semblend.integration.auditing.savings import add_up


def settled(request: int, *, reusable: int = 0, reused: int = 0) -> Settlement:
    found = bool(reusable or reused)
    return Settlement(
        request_id=f"r{request}",
        outcome=Outcome.MATERIALISED if reused else Outcome.DISCOVERY_ONLY,
        reason=DeclineReason.NO_CERTIFICATE if reusable else None,
        prompt_tokens=1_000,
        materialised_tokens=reused,
        reusable_tokens=reusable,
        cost=CostEstimate(cold=1_000.0, planned=200.0 if found else 1_000.0),
        tokens_by_donor=(("<b>d1</b>", reusable or reused),) if found else (),
    )


@pytest.fixture
def stream(tmp_path) -> Path:
    path = tmp_path / "audit.jsonl"
    audit = AuditStream(engine="vllm", logger=logging.getLogger("semblend.test_report"), path=path)
    fields = {"seconds_per_unit": 0.001, "ranks": 2}
    audit.donor_registered("r0", donor_id="<b>d1</b>", namespace="n", tokens=900, blocks=9)
    audit.settled(settled(0), tenant="acme", **fields)
    audit.settled(settled(1, reusable=800), tenant="acme", **fields)
    audit.settled(settled(2, reusable=700), tenant="[bold]other", **fields)
    audit.settled(settled(3, reused=500), tenant="acme", **fields)
    audit.close()
    return path


def run(*arguments: object):
    return CliRunner().invoke(app, ["report", *map(str, arguments)])


def test_the_report_adds_up_tokens_seconds_and_gpu_hours(stream):
    body = json.loads(run(stream, "--json").stdout)
    total = body["total"]
    assert (total["requests"], total["prompt_tokens"]) == (4, 4_000)
    assert (total["reusable_tokens"], total["reused_tokens"]) == (1_500, 500)
    assert total["reusable_share"] == pytest.approx(0.375)
    assert total["savable_seconds"] == pytest.approx(1.6), "800 units of a millisecond, twice"
    assert total["saved_seconds"] == pytest.approx(0.8)
    assert body["gpu_hours_savable"] == pytest.approx(2 * 1.6 / 3600)
    assert body["tenants"]["acme"]["reusable_tokens"] == 800
    assert body["documents"] == [
        {"donor_id": "<b>d1</b>", "donor_tokens": 900, "requests": 3, "tokens": 2_000}
    ]


def test_given_speed_and_gpus_win_over_the_stream(stream):
    body = json.loads(run(stream, "--json", "--prefill-us-per-token", 2000, "--gpus", 8).stdout)
    assert body["total"]["savable_seconds"] == pytest.approx(3.2)
    assert body["gpu_hours_savable"] == pytest.approx(8 * 3.2 / 3600)


def test_a_stream_without_times_says_that_seconds_are_missing(stream):
    lines = [json.loads(line) for line in stream.read_text().splitlines()]
    for line in lines:
        line.pop("seconds_per_unit", None)
    stream.write_text("\n".join(map(json.dumps, lines)))
    shown = run(stream).stdout
    assert "--prefill-us-per-token" in shown
    assert "37.5%" in shown


def test_the_page_shows_the_figures_and_no_markup_of_others(stream, tmp_path):
    page = tmp_path / "deep" / "report.html"
    result = run(stream, "--html", page)
    assert result.exit_code == 0
    text = page.read_text()
    assert "37.5%" in text
    assert "<b>d1</b>" not in text
    assert "&lt;b&gt;d1&lt;/b&gt;" in text
    assert "[bold]other" in result.stdout


def test_rotated_files_are_read_too_and_a_record_seen_twice_counts_once(stream):
    lines = stream.read_text().splitlines()
    stream.with_name("audit.jsonl.1").write_text("\n".join(lines[:4]))
    stream.write_text("\n".join(lines[2:]))
    assert json.loads(run(stream, "--json").stdout)["total"]["requests"] == 4


def test_a_file_that_is_no_audit_stream_is_refused_in_a_sentence(tmp_path):
    for text in ("", "hello\n", "[1]\n", '{"event": "request_first_seen"}\n'):
        (tmp_path / "x").write_text(text)
        result = run(tmp_path / "x")
        assert result.exit_code == 2
        assert "settles no request" in result.output
    assert "No such file" in run(tmp_path / "absent").output


PLAIN = st.none() | st.booleans() | st.floats() | st.integers() | st.text()
JSON_VALUES = st.recursive(
    PLAIN, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8
)
FIELDS = (
    *("event", "time", "prompt_tokens", "reusable_tokens", "saved_units", "cold_units"),
    *("tokens_by_donor", "seconds_per_unit", "ranks", "tenant", "connector_id", "event_seq"),
)


@given(st.lists(JSON_VALUES), st.dictionaries(st.sampled_from(FIELDS), JSON_VALUES))
def test_no_line_stops_the_report(values, record):
    lines = [json.dumps(value) for value in values]
    lines.append(json.dumps({"event": "request_settled", **record}))
    try:
        found = add_up(lines)
    except SerialisationError:
        return
    json.dumps(found.to_dict(top=3), allow_nan=False)


def test_a_discovery_server_is_asked_what_it_would_save(tmp_path):
    """The whole way: the embedded server without a certificate, its file, the report."""
    pytest.importorskip("torch")
    from semblend.core.settings import EmbedderKind, Settings
    from semblend.engine import EmbeddedEngine, EngineOptions
    from tests.serve.support import MODEL, MODEL_NAME, running
    from tests.serve.texts import document, messages

    settings = Settings(embedder=EmbedderKind.NONE, certificate_dir="none")
    path = tmp_path / "audit.jsonl"
    options = EngineOptions(device="cpu", pool_bytes=128 * 2**20)
    with (
        EmbeddedEngine.load(str(MODEL), options=options, settings=settings) as engine,
        running(engine, audit_path=path) as host,
    ):
        for rule in ("Read it.", "You are careful and answer in as few words as you can."):
            asked = messages(rule, document(3), "Where was the lamp?")
            body = {"model": MODEL_NAME, "max_tokens": 2, "messages": asked}
            httpx.post(f"{host.url}/v1/chat/completions", json=body, timeout=120).raise_for_status()
            engine.donors.wait()
        scraped = httpx.get(f"{host.url}/metrics").text
    body = json.loads(run(path, "--json").stdout)
    total = body["total"]
    assert total["requests"] == 2
    assert total["reusable_share"] > 0.2
    assert total["savable_seconds"] > 0
    assert len(body["documents"]) == 1
    (line,) = [
        each
        for each in scraped.splitlines()
        if each.startswith('semblend:tokens_total{stage="reusable"')
    ]
    assert float(line.split()[-1]) == total["reusable_tokens"]
