"""Promises: the directory answers for the tenant of a checked key, and tells others nothing."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI

from semblend.core.namespace import Namespace
from semblend.core.settings import EmbedderKind, Settings
from semblend.fleet.directory.directory import Directory
from semblend.fleet.directory.index import SketchIndex
from semblend.fleet.events.event_values import GenerationReset, Heartbeat, Location
from semblend.fleet.keys import FleetKeys
from semblend.fleet.placement.expected_time import FleetCost
from semblend.serve.gateway.app import create_gateway
from semblend.serve.gateway.options import GatewayOptions
from tests.fleet.support import event, prompt, registered
from tests.serve.fakes import ScriptedEngine
from tests.serve.support import MODEL_NAME, running, until

SECRET = "the secret of this fleet"
ALICE, MALLORY, ADMIN = "sk-alice-0123456789", "sk-mallory-0123456789", "sk-admin-0123456789"
COLLEAGUE = "sk-colleague-0123456789"
KEYS = {
    "keys": {
        ALICE: {"tenant": "alice", "principal": "alice-herself"},
        COLLEAGUE: "alice",
        MALLORY: "mallory",
        ADMIN: {"tenant": "ops", "admin": True},
    }
}
TOKENS = [int(token) % 4000 for token in prompt(7, 900)]
OWNER = "b-owner"

Gateway = Callable[..., str]


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    """Makes gateways that know one donor: `TOKENS`, of Alice's, held by the second worker."""
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps(KEYS))
    engine = ScriptedEngine()
    with ExitStack() as leaving:
        worker = leaving.enter_context(running(engine, key_file=keys))

        def make(**changes: Any) -> str:
            settings = Settings(
                embedder=EmbedderKind.NONE, namespace_secret=SECRET, fleet_sampling=2
            )
            directory = Directory(SketchIndex(max_donors=64, max_postings=10_000))
            tenant = Namespace.of(model="scripted", tenant="alice")
            namespace = tenant.for_principal("alice-herself")
            parts = {
                name: value
                for name, value in namespace.to_dict().items()
                if name not in ("tenant", "template", "cache_salt")
            }
            donor = registered(
                "d",
                prompt(7, 900) % 4000,
                keys=FleetKeys.of(namespace, SECRET.encode()),
                sampling=2,
                location=Location(worker_id=OWNER, tier="host"),
            )
            reset = GenerationReset(generation=1, namespace=parts)
            directory.apply([event(1, reset, OWNER), event(2, donor, OWNER)])
            directory.hear(Heartbeat(worker_id=OWNER, dp_rank=0, generation=1, last_event_id=2))
            options = GatewayOptions(
                workers=(("a-other", worker.url), (OWNER, worker.url)),
                cost=FleetCost(seconds_per_token=1e-3),
                health_timeout_s=60.0,  # A busy machine is no sick worker.
                **{"key_file": keys, **changes},
            )
            app = create_gateway(directory, engine.tokenizer, options, settings)
            return leaving.enter_context(serving(app))

        yield make


@contextmanager
def serving(app: FastAPI) -> Iterator[str]:
    """A gateway on a real port: its connections to workers live as long as its loop."""
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False))
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
    thread.start()
    until(lambda: server.started or not thread.is_alive(), "the gateway to start")
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(timeout=60)
        listener.close()


def ask(
    url: str, key: str | None, path: str = "/v1/completions", salt: str = "", **headers: str
) -> httpx.Response:
    if key is not None:
        headers["authorization"] = f"Bearer {key}"
    body = {"model": MODEL_NAME, "prompt": TOKENS, "max_tokens": 1}
    if salt:
        body["cache_salt"] = salt
    return httpx.post(f"{url}{path}", json=body, headers=headers, timeout=60, trust_env=False)


def get(url: str, path: str, **headers: str) -> httpx.Response:
    return httpx.get(f"{url}{path}", headers=headers, timeout=60, trust_env=False)


def routing(reply: httpx.Response) -> dict[str, str]:
    ours = ("x-semantic-route", "x-semblend-placement", "x-semblend-expected", "x-semblend-worker")
    timed = "x-semblend-placement-ms"
    return {n: v for n, v in reply.headers.items() if n.startswith(ours) and n != timed}


def test_a_key_finds_its_own_principals_donors_and_no_header_changes_whose(
    gateway: Gateway,
) -> None:
    url = gateway(trust_tenant_header=True)
    mine = ask(url, ALICE)
    assert mine.status_code == 200
    assert routing(mine)["x-semblend-worker"] == OWNER
    assert int(routing(mine)["x-semblend-expected-tokens"]) > 500
    for other in (MALLORY, COLLEAGUE):
        theirs = ask(url, other)
        assert theirs.status_code == 200
        assert routing(theirs)["x-semantic-route"] == "router"
        assert routing(theirs)["x-semblend-worker"] == "a-other"
        assert "x-semblend-expected-tokens" not in theirs.headers
    for claimed in ("alice", "nobody"):
        refused = ask(url, MALLORY, **{"x-tenant-id": claimed})
        assert refused.status_code == 403
        assert routing(refused) == {}


def test_no_salt_finds_what_was_kept_without_one(gateway: Gateway) -> None:
    url = gateway()
    assert routing(ask(url, ALICE))["x-semblend-worker"] == OWNER
    for salt in ("none", "salt:none", "mine"):
        assert routing(ask(url, ALICE, salt=salt))["x-semantic-route"] == "router"


def test_without_a_known_key_nothing_is_looked_up(gateway: Gateway) -> None:
    url = gateway(trust_tenant_header=True)
    for path in ("/v1/completions", "/semblend/placement"):
        for key in (None, "sk-of-nobody-0123456789"):
            refused = ask(url, key, path, **{"x-tenant-id": "alice"})
            assert refused.status_code == 401
            assert not routing(refused)


def test_somebody_the_worker_turns_away_learns_nothing_from_headers(gateway: Gateway) -> None:
    """A gateway that leaves keys to the workers must not answer before them."""
    url = gateway(key_file=None, trust_tenant_header=True)
    nameless = ask(url, None)
    assert nameless.status_code == 400
    assert nameless.json()["error"]["code"] == "tenant_header_missing"
    assert routing(nameless) == {}
    known = ask(url, None, **{"x-tenant-id": "alice"})
    unknown = ask(url, None, **{"x-tenant-id": "nobody"})
    assert known.status_code == unknown.status_code == 401
    assert routing(known) == routing(unknown) == {}


def test_what_adds_up_all_tenants_is_for_admins(gateway: Gateway) -> None:
    url = gateway()
    assert ask(url, ALICE, "/semblend/placement").status_code == 403
    assert ask(url, ADMIN, "/semblend/placement").status_code == 200
    for key, status in ((ALICE, 403), (ADMIN, 200)):
        assert get(url, "/metrics", authorization=f"Bearer {key}").status_code == status
    assert get(gateway(public_metrics=True), "/metrics").status_code == 200


def test_the_gateway_has_the_servers_gate(gateway: Gateway) -> None:
    url = gateway(max_body_bytes=100)
    assert ask(url, ALICE).status_code == 413
    headers = {"authorization": f"Bearer {ALICE}", "content-type": "text/plain"}
    reply = httpx.post(f"{url}/v1/completions", content=b"{}", headers=headers, trust_env=False)
    assert reply.status_code == 415
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert get(url, "/health", host="evil.example").status_code == 421


def test_gateway_and_worker_log_a_request_under_one_id(gateway: Gateway) -> None:
    given = ask(gateway(), ALICE, **{"x-request-id": "id-1"})
    made = ask(gateway(), ALICE, **{"x-request-id": "no id"})
    assert given.headers.get_list("x-request-id") == ["id-1"]
    assert len(made.headers["x-request-id"]) == 32
