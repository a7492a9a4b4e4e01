"""`vllm serve` behind `semblend route`, as a user starts both: it signs its answers, and its own
K/V events say who owns an exact prefix.

Block hashes are whole digests here; tests/fleet/test_vllm_fleet.py has them as numbers.
"""

import json
import os
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace

import httpx
import numpy as np
import pytest

from semblend.engine.model import load_model
from tests.fleet.engines import MODEL, Worker
from tests.fleet.line_workers import ROOT, SECRET, lend
from tests.fleet.support import need_environment, slow, until
from tests.fleet.test_commands import _free_port

pytestmark = slow

VLLM = ROOT / ".venv-vllm" / "bin" / "vllm"
TRANSFER = {
    "kv_connector": "SemBlendVllmConnector",
    "kv_connector_module_path": "semblend_vllm_connector.connector",
    "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute",
    "kv_connector_extra_config": {
        "mode": "segmented_experimental",
        "recompute_policy": "none",
        "min_prompt_tokens": 64,
    },
}


def text(seed, size):
    return np.random.default_rng(seed).integers(300, 4000, size).tolist()


@contextmanager
def process(command, env, log, url):
    """A server that answers before anything else happens, and ends with the test."""
    with log.open("w") as output:
        started = subprocess.Popen(command, env=env, stdout=output, stderr=subprocess.STDOUT)
    try:
        with httpx.Client(trust_env=False) as client:
            until(lambda: started.poll() is not None or _well(client, url), str(log), 300.0)
        assert started.poll() is None, log.read_text()[-3000:]
        yield
    finally:
        started.terminate()
        try:
            started.wait(timeout=30)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()


def _well(client, url):
    try:
        return client.get(f"{url}/health").status_code == 200
    except httpx.HTTPError:
        return False


def serving_vllm(folder, nats_url, url):
    lent = lend(folder / "lent", "nats")
    events = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"ipc://{folder}/events",
        "replay_endpoint": f"ipc://{folder}/replay",
    }
    command = [
        *(str(VLLM), "serve", str(MODEL), "--host=127.0.0.1", f"--port={url.rpartition(':')[2]}"),
        *("--served-model-name=m", "--dtype=float32", "--enforce-eager", "--max-model-len=2048"),
        *("--kv-cache-memory-bytes=64M", "--block-size=32", "--enable-prompt-tokens-details"),
        "--worker-cls=semblend.integration.vllm.worker.SemBlendWorker",
        f"--kv-transfer-config={json.dumps(TRANSFER)}",
        f"--kv-events-config={json.dumps(events)}",
        "--middleware=semblend.integration.worker_header.WorkerHeader",
    ]
    env = {
        **os.environ,
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}:{lent}",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "SEMBLEND_MEASURE_SPEED": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES": "0",
        "VLLM_SERVER_DEV_MODE": "1",
        "SEMBLEND_NATS_URL": nats_url,
        "SEMBLEND_NAMESPACE_SECRET": SECRET,
        "SEMBLEND_WORKER_ID": "vllm-b",
        "SEMBLEND_FLEET_SAMPLING": "2",
        "SEMBLEND_EMBEDDER": "none",
        "SEMBLEND_ALLOW_UNCERTIFIED": "1",
    }
    return process(command, env, folder / "vllm.log", url)


def serving_gateway(folder, nats_url, url, workers):
    command = [
        *(sys.executable, "-m", "semblend.cli.main", "route", str(MODEL)),
        *("--port", url.rpartition(":")[2], "--max-donor-mib", "4"),
        *("--prefill-us-per-token", "1000", "--kv-bytes-per-token", "12288"),
        *(part for name, at in workers.items() for part in ("--worker", f"{name}={at}")),
        *("--kv-events", f"vllm-b=ipc://{folder}/events,ipc://{folder}/replay"),
    ]
    env = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "SEMBLEND_NATS_URL": nats_url,
        "SEMBLEND_NAMESPACE_SECRET": SECRET,
        "SEMBLEND_FLEET_SAMPLING": "2",
    }
    return process(command, env, folder / "gateway.log", url)


@pytest.fixture(scope="module")
def fleet(module_nats_server, tmp_path_factory):
    need_environment(VLLM, "vLLM", "scripts/vllm_env.sh")
    folder, nats_url = tmp_path_factory.mktemp("server"), module_nats_server.url
    vllm, gateway = (f"http://127.0.0.1:{_free_port()}" for _ in range(2))
    model = load_model(str(MODEL), device="cpu", dtype="float32")
    with ExitStack() as ending:
        ending.enter_context(serving_vllm(folder, nats_url, vllm))
        embedded = Worker(model, "embedded-a", nats_url, tenants=False)
        ending.callback(embedded.close)
        workers = {"embedded-a": embedded.server.url, "vllm-b": vllm}
        ending.enter_context(serving_gateway(folder, nats_url, gateway, workers))
        client = ending.enter_context(httpx.Client(trust_env=False, timeout=120))

        def ask(url, tokens, **more):
            body = {"model": "m", "prompt": tokens, "max_tokens": 2, "temperature": 0, **more}
            return client.post(f"{url}/v1/completions", json=body)

        def chosen(tokens, **more):
            body = {"model": "m", "prompt": tokens, **more}
            said = client.post(f"{gateway}/semblend/placement", json=body).json()
            return said["choice"], said["worker"]

        yield SimpleNamespace(vllm=vllm, gateway=gateway, client=client, ask=ask, chosen=chosen)


def test_a_real_vllm_server_signs_its_answers(fleet):
    answered = fleet.ask(fleet.vllm, text(1, 50))
    assert answered.status_code == 200
    assert answered.headers["x-semblend-worker"] == "vllm-b"
    refused = fleet.ask(fleet.vllm, text(1, 50), max_tokens=-1)
    assert refused.status_code == 400
    assert refused.headers["x-semblend-worker"] == "vllm-b"
    streamed = fleet.ask(fleet.vllm, text(1, 50), stream=True)
    assert streamed.headers["x-semblend-worker"] == "vllm-b"
    assert "data: [DONE]" in streamed.text


def test_requests_reach_the_prefix_vllm_holds_and_the_donor_it_keeps_when_it_does_not(fleet):
    # Whole blocks: a donor that covers more than vLLM's blocks of this prompt would be chosen
    # instead of them, as soon as the gateway hears of it.
    document, question = text(2, 704), text(3, 40)
    hints = {"kv_transfer_params": {"semblend": {"capture": True}}}
    assert fleet.ask(fleet.vllm, document + text(4, 10), **hints).status_code == 200

    # An exact prefix, by vLLM's own events: placed there, and cached there by its own count.
    target, moved = document + question, text(5, 64) + document + question
    until(lambda: fleet.chosen(moved) == ("donor", "vllm-b"), "the donor")
    until(lambda: fleet.chosen(target) == ("exact_prefix", "vllm-b"), "vLLM's blocks")
    assert fleet.chosen(target, cache_salt="another's")[0] == "router"
    reply = fleet.ask(fleet.gateway, target)
    assert reply.headers["x-semantic-route"] == "exact_prefix"
    assert reply.headers["x-semblend-worker"] == "vllm-b"
    assert reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"] >= 704

    # The same document elsewhere in a prompt: its donor, and the reuse is confirmed there.
    reply = fleet.ask(fleet.gateway, moved)
    assert reply.headers["x-semantic-route"] == "semantic_placement"
    assert reply.headers["x-semblend-worker"] == "vllm-b"
    assert reply.json()["kv_transfer_params"]["semblend"]["outcome"] == "materialised"

    # vLLM's cache is emptied: nobody owns the prefix any more, but the donor is still a copy.
    assert fleet.client.post(f"{fleet.vllm}/reset_prefix_cache").status_code == 200
    fleet.ask(fleet.vllm, text(6, 40))  # it publishes with its next step
    until(lambda: fleet.chosen(target) == ("donor", "vllm-b"), "the cleared cache")
    metrics = fleet.client.get(f"{fleet.gateway}/metrics").text
    assert 'semblend:cache_gaps{worker="vllm-b"} 0.0' in metrics
