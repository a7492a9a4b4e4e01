"""Promises: metrics parse, count what the engine confirmed, and name no tenant."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from semblend.core.outcomes import DeclineReason, Outcome
from semblend.engine.engine import EmbeddedEngine
from tests.serve.support import MODEL_NAME, Running, running, until
from tests.serve.texts import document, messages

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture(scope="module")
def fresh(engine: EmbeddedEngine) -> Iterator[Running]:
    with running(engine, trust_tenant_header=True) as host:
        yield host


def scrape(host: Running, accept: str = "text/plain") -> Samples:
    response = httpx.get(f"{host.url}/metrics", headers={"accept": accept})
    assert response.status_code == 200
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


def ask(host: Running, instruction: str, text: str) -> dict[str, object]:
    response = httpx.post(
        f"{host.v1}/chat/completions",
        json={
            "model": MODEL_NAME,
            "messages": messages(instruction, text, "Where?"),
            "max_tokens": 3,
        },
        headers={"x-tenant-id": "metrics-tenant"},
        timeout=60,
    )
    return dict(response.json()["semblend"])


def test_counters_add_up_to_the_reports(fresh: Running) -> None:
    text = document(700)
    before = fresh.context.engine.stats().registrations
    reports = [ask(fresh, "Answer.", text)]
    until(lambda: fresh.context.engine.stats().registrations > before, "a donor")
    reports.append(ask(fresh, "Read this and answer.", text))
    reports.append(ask(fresh, "Answer.", text))
    samples = scrape(fresh)

    def tokens(stage: str) -> float:
        return samples["semblend:tokens_total", (("stage", stage),)]

    def total(name: str) -> int:
        return sum(int(str(report[name])) for report in reports)

    assert tokens("exact") == total("exact_tokens") > 0
    assert tokens("materialized") == total("reused_tokens") > 0
    assert tokens("recomputed") == total("recomputed_tokens") > 0
    assert tokens("computed") + tokens("recomputed") == total("computed_tokens")
    for outcome in Outcome:
        expected = sum(report["outcome"] == outcome.value for report in reports)
        assert samples["semblend:requests_total", (("outcome", outcome.value),)] == expected
    for reason in DeclineReason:
        expected = sum(report["reason"] == reason.value for report in reports)
        assert samples["semblend:declines_total", (("reason", reason.value),)] == expected
    assert samples["semblend:lookup_seconds_count", ()] == 3
    first = samples["semblend:time_to_first_token_seconds_count", (("outcome", "materialised"),)]
    assert first == 1
    assert samples["semblend:output_tokens_total", ()] <= 9
    assert (
        samples[
            "semblend:http_responses_total",
            (("endpoint", "/v1/chat/completions"), ("status", "200")),
        ]
        == 3
    )


def test_gauges_show_the_engine(fresh: Running) -> None:
    samples = scrape(fresh)
    stats = fresh.context.engine.stats()
    assert samples["semblend:donors", ()] == stats.donors
    assert samples["semblend:pool_pages", ()] == stats.pool_pages
    assert samples["semblend:pool_pages_free", ()] == stats.pool_pages_free
    assert samples["semblend:index_bytes", ()] == stats.index_bytes
    for tier, size in stats.tier_bytes.items():
        assert samples["semblend:tier_bytes", (("tier", tier),)] == size
    assert samples["semblend:donor_registrations_total", ()] == stats.registrations


def test_any_scraper_reads_the_same_names_and_none_of_a_tenant(fresh: Running) -> None:
    for accept in ("text/plain", "application/openmetrics-text; version=1.0.0"):
        samples = scrape(fresh, accept)
        assert ("semblend:donors", ()) in samples
        labels = {name for _, pairs in samples for name, _ in pairs}
        assert labels <= {"stage", "outcome", "reason", "tier", "endpoint", "status", "le", "mode"}
        assert "metrics-tenant" not in str(samples)


def test_unknown_paths_make_no_new_series(fresh: Running) -> None:
    for index in range(5):
        httpx.get(f"{fresh.url}/nothing/{index}")
    endpoints = {
        dict(pairs)["endpoint"]
        for name, pairs in scrape(fresh)
        if name == "semblend:http_responses_total"
    }
    assert endpoints <= {"/v1/chat/completions", "/metrics", "other"}


def test_two_servers_in_one_process_count_apart(engine: EmbeddedEngine, fresh: Running) -> None:
    with running(engine) as second:
        samples = scrape(second)
    assert samples["semblend:lookup_seconds_count", ()] == 0
