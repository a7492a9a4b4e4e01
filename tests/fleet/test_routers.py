"""Behind a router that decides for itself, placement goes by the session keys it keeps together."""

import hashlib
import itertools
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from fastapi.testclient import TestClient

from semblend.core.errors import SettingsError
from semblend.core.namespace import NONE, Namespace
from semblend.fleet.announcer import public_parts
from semblend.fleet.directory.directory import Directory
from semblend.fleet.directory.index import SketchIndex
from semblend.fleet.events.event_values import GenerationReset
from semblend.fleet.keys import FleetKeys
from semblend.integration.dynamo.pinning import SESSION_HEADERS, RouterAffinity
from semblend.integration.worker_header import WorkerHeader
from semblend.serve.gateway.app import create_gateway
from semblend.serve.gateway.options import GatewayOptions
from tests.fleet.engines import MODEL, SLOW_PREFILL, Gateway, Worker, on_a_port, serving, settings
from tests.fleet.support import event, need, prompt, registered, slow, until

HEADER = "x-session-id"
TEXTS = [
    " ".join(
        f"Page {page} of volume {volume} is about item {page * 37 % 101}." for page in range(60)
    )
    for volume in range(2)
]


@pytest.mark.parametrize("router", SESSION_HEADERS)
def test_affinity_uses_only_keys_that_were_seen_to_lead_there(router):
    affinity = RouterAffinity(router, limit=3)
    assert affinity.headers("a") == {}
    affinity.learn("k1", "a")
    affinity.learn("k2", "b")
    assert affinity.headers("a") == {SESSION_HEADERS[router]: "k1"}
    affinity.learn("k1", "b")
    assert affinity.headers("a") == {}, "the router moved the key"
    for number in range(9):
        affinity.learn(f"n{number}", "c")
    assert affinity.headers("b") == {}, "forgotten: the table is bounded"


def test_an_unknown_router_is_refused_by_name():
    with pytest.raises(SettingsError, match="vllm-router, sglang-router"):
        RouterAffinity("nginx")
    workers = (("a", "http://a"),)
    with pytest.raises(SettingsError, match="not both"):
        GatewayOptions(workers=workers, router="vllm-router", pin_header="x-pin")


def hello():
    return {}


def test_a_worker_says_its_name_and_only_where_it_has_one(monkeypatch):
    monkeypatch.setenv("SEMBLEND_WORKER_ID", "a")
    for name, expected in ((None, "a"), ("b", "b"), ("", None)):
        app = FastAPI()
        app.get("/")(hello)
        app.add_middleware(WorkerHeader, worker_id=name)
        assert TestClient(app).get("/").headers.get("x-semblend-worker") == expected


class KeyedRouter:
    """Keeps keys together by a rule of its own, as the real ones do."""

    def __init__(self):
        self.seen = []
        self.salt = ""
        self.named = True
        self.app = FastAPI()
        self.app.post("/v1/completions")(self.answer)
        self.app.get("/health")(hello)

    def owner(self, key):
        return "ab"[hashlib.sha256((self.salt + key).encode()).digest()[0] % 2]

    async def answer(self, request: Request):
        self.seen.append(key := request.headers[HEADER])
        headers = {"x-semblend-worker": self.owner(key)} if self.named else {}
        return JSONResponse({"choices": []}, headers=headers)


class Behind:
    """A gateway before such a router, with a donor of `b` in its directory."""

    def __init__(self, router, url):
        from transformers import AutoTokenizer

        self.router = router
        mine = settings()
        namespace = Namespace.of(model="m", tenant=NONE)
        keys = FleetKeys.of(namespace, mine.namespace_secret.encode())
        held = Directory(SketchIndex(max_donors=64, max_postings=9000), lease_s=None)
        self.document = prompt(1, 900) % 4000
        for worker in "ab":
            start = GenerationReset(generation=1, namespace=public_parts(namespace))
            held.apply([event(1, start, worker)])
        donor = registered(
            "d", np.concatenate((prompt(2, 90), self.document)), keys=keys, sampling=2
        )
        held.apply([event(2, donor, "b")])
        options = GatewayOptions(
            workers=(("a", url), ("b", url)),
            router="vllm-router",
            cost=SLOW_PREFILL,
            health_interval_s=600.0,
            allowed_hosts=("testserver",),
        )
        self.client = TestClient(
            create_gateway(held, AutoTokenizer.from_pretrained(MODEL), options, mine)
        )
        self._numbers = itertools.count(50)

    def ask(self, *, moved, **headers):
        lead = prompt(next(self._numbers), 70) % 4000
        tokens = np.concatenate((lead, self.document, [7, 8])) if moved else lead
        body = {"model": "m", "prompt": tokens.tolist()}
        reply = self.client.post("/v1/completions", json=body, headers=headers)
        assert reply.status_code == 200, reply.text
        return reply


@pytest.fixture
def behind():
    router = KeyedRouter()
    with on_a_port(router.app) as url:
        made = Behind(router, url)
        with made.client:
            yield made


def test_a_request_reaches_its_donor_once_a_key_is_known_to_lead_there(behind):
    learned = False
    for _ in range(64):
        reply = behind.ask(moved=True)
        kept = reply.headers["x-semblend-worker"] == "b"
        assert (reply.headers["x-semblend-placement"] == "donor") is kept, "only what was kept"
        if learned:
            assert kept
        learned = learned or kept
    assert learned
    assert len(set(behind.router.seen[-20:])) == 1, "and one key is enough"


def test_requests_that_go_anywhere_are_spread_and_teach_the_gateway(behind):
    for _ in range(20):
        assert behind.ask(moved=False).headers["x-semblend-placement"] == "router"
    assert len(set(behind.router.seen)) == 20
    assert {behind.router.owner(key) for key in behind.router.seen} == {"a", "b"}
    assert behind.ask(moved=True).headers["x-semblend-worker"] == "b"


def test_a_callers_own_session_is_kept_together_unless_its_k_v_is_elsewhere(behind):
    theirs = next(key for key in map(str, range(99)) if behind.router.owner(key) == "a")
    behind.ask(moved=False, **{HEADER: theirs})
    assert behind.router.seen[-1] == theirs
    other = next(key for key in map(str, range(99)) if behind.router.owner(key) == "b")
    behind.ask(moved=False, **{HEADER: other})
    behind.ask(moved=True, **{HEADER: theirs})
    assert behind.router.seen[-1] == other, "a choice wins, with a key that leads there"


def test_a_router_that_moves_its_keys_is_learned_anew(behind):
    for _ in range(20):
        behind.ask(moved=False)
    assert behind.ask(moved=True).headers["x-semblend-worker"] == "b"
    behind.router.salt = "another ring"
    tried = [behind.ask(moved=True).headers["x-semblend-worker"] for _ in range(64)]
    assert tried[-1] == "b"
    assert tried == sorted(tried), "from the first time it was right, it is"


def test_workers_that_do_not_say_who_they_are_are_never_claimed(behind):
    behind.router.named = False
    for _ in range(9):
        reply = behind.ask(moved=True)
        assert reply.headers["x-semblend-worker"] == "unknown"
        assert reply.headers["x-semblend-placement"] == "router"


def lenient(worker):
    """A worker that passes over fields it does not know, as vLLM and SGLang do."""
    app = FastAPI()

    @app.get("/{path:path}")
    async def get(path: str):
        return {"status": "ok", "model_path": str(MODEL), "data": [{"id": "m", "object": "model"}]}

    @app.post("/v1/chat/completions")
    async def post(request: Request):
        body = await request.json()
        kept = {"model": "m", "messages": body["messages"], "max_tokens": 2}
        async with httpx.AsyncClient(trust_env=False, timeout=120) as client:
            reply = await client.post(f"{worker.server.url}/v1/chat/completions", json=kept)
        headers = {name: reply.headers[name] for name in reply.headers if name.startswith("x-")}
        return JSONResponse(reply.json(), status_code=reply.status_code, headers=headers)

    return app


@contextmanager
def real_router(name, workers, log):
    """The router itself, in front of real workers."""
    with socket.socket() as free, socket.socket() as other:
        free.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        port, metrics = free.getsockname()[1], other.getsockname()[1]
    policy = {"vllm-router": "consistent_hash", "sglang-router": "manual"}[name]
    command = [
        str(Path(sys.executable).parent / name),
        *(("launch",) if name == "sglang-router" else ()),
        *("--worker-urls", *workers, "--policy", policy),
        *("--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(metrics)),
    ]
    url = f"http://127.0.0.1:{port}"
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            until(lambda: _answers(url), f"{name} to start: {log}")
            yield url
        finally:
            process.kill()
            process.wait()


def _answers(url):
    try:
        return httpx.get(f"{url}/health", trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


@slow
@pytest.mark.parametrize("name", SESSION_HEADERS)
def test_placement_through_a_real_router_reaches_the_donors_worker(name, nats_server, tmp_path):
    from semblend.engine.model import load_model

    need((Path(sys.executable).parent / name).exists(), name)
    model = load_model(str(MODEL), device="cpu", dtype="float32")
    a, b = (Worker(model, worker, nats_server.url, tenants=False) for worker in "ab")
    try:
        for worker, text in zip((a, b), TEXTS, strict=True):
            assert chat(worker.server.url, text).status_code == 200
            worker.engine.donors.wait()
        with (
            on_a_port(lenient(a)) as one,
            on_a_port(lenient(b)) as two,
            real_router(name, [one, two], tmp_path / "router.log") as through,
        ):
            gateway = Gateway(
                nats_server.url,
                [a, b],
                lease_s=30.0,
                router=name,
                through=through,
                tenants=False,  # Routers pass on what they know.
            )
            with serving(gateway) as url:
                gateway.knows(a, b)
                met = set()
                for number in range(64):
                    met.add(chat(url, f"Hello {number}.").headers["x-semblend-worker"])
                    if met == {"a", "b"}:
                        break
                assert met == {"a", "b"}, "the router's keys lead to both"
                for turn in range(3):
                    for owner, text in zip((a, b), TEXTS, strict=True):
                        reply = chat(url, f"Question {turn}: what is this about? {text} Well?")
                        assert reply.headers["x-semblend-worker"] == owner.name
                        assert reply.headers["x-semblend-placement"] == "donor"
                        assert reply.headers["x-semblend-outcome"] == "materialised"
    finally:
        for worker in (a, b):
            worker.close()


def chat(url, text):
    body = {"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": 2}
    with httpx.Client(trust_env=False, timeout=120) as client:
        reply = client.post(f"{url}/v1/chat/completions", json=body)
    assert reply.status_code == 200, reply.text
    return reply
