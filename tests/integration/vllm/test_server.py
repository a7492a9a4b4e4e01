"""The HTTP server, with the `openai` client, its metrics, its log and its audit stream."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import httpx
import openai
import pytest

from sembench.engine_events.connector_audit import audited_requests
from sembench.engine_events.vllm import VllmParser
from semblend.integration.vllm.ladder_client import LadderClient
from semblend.quality.served.asking import ServedRequest
from semblend.quality.served.over_http import HttpServer
from tests.deployed_metrics import missing, named
from tests.integration.models import REFERENCE, random_tokens
from tests.integration.vllm.engines import WORKER
from tests.integration.vllm.servers import EXAMPLES, example_server, vllm_server

DOCUMENT = " ".join(
    f"Note {n}: the {thing} of room {n} belongs to the keeper of the {place}."
    for n, (thing, place) in enumerate(
        (thing, place)
        for place in ("north gate", "old mill", "river house", "stone tower")
        for thing in ("lamp", "clock", "map", "key", "chair", "mirror")
    )
)
FIRST = f"Read these notes carefully. {DOCUMENT} Who keeps the lamp of room 0?"
SECOND = (
    f"You answer briefly and only from the text below, dear guide. {DOCUMENT} Whose is the key?"
)


def transfer(audit, **extra):
    return {
        "kv_connector": "SemBlendVllmConnector",
        "kv_connector_module_path": "semblend_vllm_connector.connector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {
            "mode": "segmented_experimental",
            "provider": "semblend",
            "embedder_type": "jaccard",
            "min_similarity": 0.1,
            "min_prompt_tokens": 64,
            "recompute_policy": "span_head(8)",
            "audit_path": str(audit),
            **extra,
        },
    }


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nested")
    with vllm_server(
        str(REFERENCE),
        log=folder / "log.txt",
        transfer=transfer(folder / "audit.jsonl"),
        arguments=(f"--worker-cls={WORKER}",),
    ) as url:
        yield url, folder


@pytest.fixture
def client_of():
    with ExitStack() as clients:
        yield lambda url: clients.enter_context(openai.OpenAI(base_url=f"{url}/v1", api_key="none"))


def complete(client, prompt, **options):
    options.setdefault("max_tokens", 8)
    return client.completions.create(model="m", prompt=prompt, temperature=0.0, **options)


def said(response):
    return response.kv_transfer_params["semblend"]


def wait_for_donor(url):
    """The capture of a request that has just been answered ends a moment later."""
    for _ in range(600):
        if metric(url, "vllm:semblend_donors_registered_total") > 0:
            return
        time.sleep(0.1)
    raise AssertionError("no donor was registered")


def metric(url, name, labels=""):
    text = httpx.get(f"{url}/metrics").text
    found = re.findall(rf"^{re.escape(name)}{{[^}}]*{re.escape(labels)}[^}}]*}} (\S+)$", text, re.M)
    return sum(map(float, found))


def test_openai_clients_are_served_with_reuse_and_told_so(server, client_of):
    url, folder = server
    client = client_of(url)
    first = complete(client, FIRST)
    assert said(first)["outcome"] == "cold"
    wait_for_donor(url)
    off = {"kv_transfer_params": {"semblend": {"reuse": False, "capture": False}}}
    cold = complete(client, SECOND, extra_body={**off, "cache_salt": "cold"})
    warm = complete(client, SECOND)
    report = said(warm)
    assert report["outcome"] == "materialised"
    assert report["reused_tokens"] > 200
    assert report["recomputed_tokens"] == 8
    assert report["certified"] is False
    assert warm.usage.prompt_tokens == cold.usage.prompt_tokens
    again = [complete(client, SECOND) for _ in range(2)]
    assert {answer.choices[0].text for answer in again} == {warm.choices[0].text}
    with ThreadPoolExecutor(4) as pool:
        many = list(pool.map(lambda _: complete(client, SECOND).choices[0].text, range(8)))
    assert set(many) == {warm.choices[0].text}

    tokens = {
        source: metric(url, "vllm:semblend_tokens_total", f'source="{source}"')
        for source in ("exact", "reused", "recomputed", "computed")
    }
    reused = metric(url, "vllm:semblend_requests_total", 'outcome="materialised"')
    assert reused >= 3
    assert tokens["reused"] > 200 * reused * 0.9
    hits = metric(url, "vllm:external_prefix_cache_hits_total")
    assert tokens["reused"] < hits, "holes are cache hits to vLLM and computed to us"
    assert metric(url, "vllm:semblend_load_failures_total") == 0

    requests = audited_requests((folder / "audit.jsonl").read_text().splitlines())
    served = [r for r in requests.values() if r.materialised_tokens]
    assert len(served) == reused
    assert sum(r.materialised_tokens for r in served) == tokens["reused"]
    parser = VllmParser()
    for line in (folder / "log.txt").read_text().splitlines():
        parser.feed(line)
    summary = parser.finish()
    # The request that became a donor, and nothing else about it.
    assert summary.donor_registrations == 1
    assert summary.materialization_events == reused
    assert summary.materialized_tokens == tokens["reused"]
    assert not summary.errors


def test_alerts_and_dashboards_name_what_a_running_server_exports(server, client_of):
    url, _ = server
    complete(client_of(url), FIRST)  # gauges come with the first request
    assert len(named("vllm:")) > 25
    assert not missing("vllm:", httpx.get(f"{url}/metrics").text)
    assert metric(url, "vllm:semblend_mode", 'mode="segmented_experimental"') == 1
    assert metric(url, "vllm:semblend_certified") == 0
    assert metric(url, "vllm:semblend_loading") == 1


def test_a_tenants_salt_keeps_others_out(server, client_of):
    url, _ = server
    client = client_of(url)
    other = complete(client, SECOND, extra_body={"cache_salt": "tenant-b"})
    assert said(other)["reused_tokens"] == 0


def run_example(name, url, folder):
    """A script of examples/vllm against this server; what it printed."""
    (folder / "document.txt").write_text(DOCUMENT)
    script = EXAMPLES / name
    model = ["m"] if name == "ladder.py" else []
    command = [sys.executable, str(script), url, *model, str(folder / "document.txt")]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout


def test_the_example_prints_what_its_second_question_reused(server, tmp_path):
    url, _ = server
    printed = run_example("ask_twice.py", url, tmp_path)
    reused = reused_of(printed)
    assert len(reused) == 2
    assert reused[1] > 200


def reused_of(printed):
    return [int(found) for found in re.findall(r"(\d+) reused", printed)]


def test_the_segmented_example_serves_a_certified_model(tmp_path, client_of):
    with example_server("segmented", str(REFERENCE), log=tmp_path / "log.txt") as url:
        first, second = reused_of(run_example("ask_twice.py", url, tmp_path))
        assert first == 0
        assert second > 200
        client = client_of(url)
        report = said(complete(client, SECOND))
        assert report["outcome"] == "materialised"
        assert report["certified"] is True
        policy = {"kv_transfer_params": {"semblend": {"policy": "none"}}}
        again = said(complete(client, SECOND, extra_body=policy))
        assert again["policy"] == report["policy"], "a request chooses no cheaper one"


def test_the_discovery_example_finds_and_loads_nothing(tmp_path):
    """The other one, of the quick start, is served in this process by `test_modes`."""
    with example_server("semblend_discovery", str(REFERENCE), log=tmp_path / "log.txt") as url:
        assert reused_of(run_example("ask_twice.py", url, tmp_path)) == [0, 0]
        assert metric(url, "vllm:semblend_requests_total", 'outcome="discovery_only"') >= 1
        assert metric(url, "vllm:semblend_requests_total", 'outcome="materialised"') == 0
        assert metric(url, "vllm:semblend_tokens_total", 'source="reusable"') > 200
        assert metric(url, "vllm:semblend_capture_bytes_total") == 0
    assert "SemBlend semantic lookup hit" in (tmp_path / "log.txt").read_text()


def test_the_ladder_client_climbs_over_http(tmp_path, client_of):
    with example_server("staged", str(REFERENCE), log=tmp_path / "log.txt") as url:
        client = client_of(url)
        complete(client, FIRST)
        wait_for_donor(url)
        tokens = httpx.post(f"{url}/tokenize", json={"model": "m", "prompt": SECOND}).json()[
            "tokens"
        ]

        async def climb():
            async with LadderClient(url, "m") as ladder:
                return await ladder.complete(tokens, max_tokens=8, temperature=0.0)

        answer = asyncio.run(climb())
        report = answer["kv_transfer_params"]["semblend"]
        assert report["ladder"]["reused_tokens"] > 150
        assert report["ladder"]["rungs"] >= 2
        assert answer["usage"]["prompt_tokens"] == len(tokens)
        assert answer["choices"][0]["text"]
        assert "reused_tokens" in run_example("ladder.py", url, tmp_path)


def test_certify_measures_a_server_over_its_url(server):
    """Items' names have slashes, which vLLM's server takes in no salt."""
    url, _ = server
    tokens = random_tokens(600, seed=41)
    served = HttpServer(
        url,
        model="m",
        fingerprint="f",
        dtype="float32",
        architecture="LlamaForCausalLM",
        tokenizer=None,
    )
    try:
        asked = {"tokens": tokens, "salt": "composed/three@home/0 cold" * 9, "most": 3}
        cold, again = served.ask([ServedRequest(**asked), ServedRequest(**asked, capture=True)])
        (apart,) = served.ask([ServedRequest(**asked | {"salt": "another"}, reuse=True)])
    finally:
        served.close()
    assert cold.tokens == again.tokens == apart.tokens
    assert len(cold.tokens) == len(cold.top) == 3
    assert apart.said["reused_tokens"] == 0, "a salt keeps donors apart"
