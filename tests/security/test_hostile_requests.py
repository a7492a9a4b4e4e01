"""Promise: whatever a caller sends, the answer is a refusal that helps, never a 5xx."""

from __future__ import annotations

import json
from typing import Any

import pytest

from semblend.serve.app import create_app
from semblend.serve.options import ServeOptions
from tests.serve.fakes import ScriptedEngine
from tests.serve.support import MODEL_NAME, call

GOOD = {"model": MODEL_NAME, "prompt": "hello", "max_tokens": 1}


@pytest.fixture(scope="module")
def app() -> Any:
    return create_app(ScriptedEngine(), ServeOptions(model_name=MODEL_NAME, max_body_bytes=200_000))


def body(**changes: Any) -> bytes:
    return json.dumps({**GOOD, **changes}).encode()


def deep(depth: int, opening: str, closing: str) -> bytes:
    return body(metadata="@").replace(b'"@"', (opening * depth + "1" + closing * depth).encode())


HOSTILE = {
    "a field named by half a character": b'{"model": "m", "\\ud800": 1}',
    "a message's field named by half a character": b'{"model": "m", "messages": [{"\\udfff": 1}]}',
    "half a character in the prompt": body(prompt="\ud800"),
    "half a character in a stop string": body(stop=["\ud800"], prompt=5),
    "half a character as the model": body(model="\ud800"),
    "lists without end": deep(50_000, "[", "]"),
    "objects without end": deep(20_000, '{"a":', "}"),
    "a number of five thousand digits": body(seed=0).replace(b"0", b"9" * 5000),
    "not a number": body(temperature=float("nan")),
    "infinite": body(top_p=float("inf")),
    "not UTF-8": b'{"model": "\xff\xfe"}',
    "nothing": b"",
    "a list": b"[]",
    "a field twice": b'{"model": "a", "model": ["b"]}',
    "a name of a megabyte's share": b'{"' + b"a" * 150_000 + b'": 1}',
    "a policy that is code": body(semblend={"policy": "__import__('os').system('id')"}),
    "a salt with a line break": body(cache_salt="a\r\nx-injected: 1"),
    "markup as the model": body(model="<script>alert(1)</script>"),
    "token ids below zero": body(prompt=[-1]),
    "token ids above all": body(prompt=[2**31 - 1]),
    "a hundred thousand empty prompts": body(prompt=[""] * 20_000),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_hostile_bodies_are_refused(app: Any, path: str, name: str) -> None:
    headers = {"content-type": "application/json"}
    reply = call(app, "POST", path, content=HOSTILE[name], headers=headers)
    assert 400 <= reply.status_code < 500, reply.text[:300]
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert len(error["message"]) < 1000
    assert "x-injected" not in reply.headers


@pytest.mark.parametrize(
    "headers",
    [
        {"x-request-id": "a" * 10_000},
        {"x-request-id": "<script>"},
        {"x-request-id": b"\xff\xfe"},
        {"x-chat-template-id": "../../etc"},
        {"x-chat-template-id": b"\xc3\x28"},
        {"x-tenant-id": "' OR 1=1 --"},
        {"content-length": "-1"},
        {"content-length": "9" * 400},
        {"content-length": "\u0663"},
        {"content-type": "application/json; charset=utf-7"},
        {"authorization": "Bearer " + "k" * 60_000},
        {"host": "localhost\t:80:80]["},
    ],
    ids=str,
)
def test_hostile_headers_do_no_harm(app: Any, headers: dict[str, Any]) -> None:
    raw = {n: v.encode() if isinstance(v, str) else v for n, v in headers.items()}
    sent = {b"content-type": b"application/json", **{n.encode(): v for n, v in raw.items()}}
    reply = call(app, "POST", "/v1/completions", content=body(), headers=list(sent.items()))
    assert reply.status_code < 500
    given = reply.headers["x-request-id"]
    assert given.isascii()
    assert len(given) <= 128
    assert "<" not in given


@pytest.mark.parametrize("name", ["authorization", "x-tenant-id", "x-chat-template-id"])
def test_a_header_that_decides_whose_request_it_is_is_said_once(name: str) -> None:
    """A gateway that adds its own behind a caller's would have the caller's believed."""
    engine = ScriptedEngine()
    trusting = create_app(engine, ServeOptions(model_name=MODEL_NAME, trust_tenant_header=True))
    headers = [("content-type", "application/json"), (name, "victim")]
    if name != "x-tenant-id":
        headers.append(("x-tenant-id", "victim"))
    assert call(trusting, "POST", "/v1/completions", content=body(), headers=headers).is_success
    served = len(engine.handles)
    headers.append((name, "mallory"))
    reply = call(trusting, "POST", "/v1/completions", content=body(), headers=headers)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == name
    assert len(engine.handles) == served


@pytest.mark.parametrize(
    "path",
    [
        "/v1/models/../../etc/passwd",
        "/v1/models/%2e%2e%2f%2e%2e%2fetc%2fpasswd",
        "/static/../x",
        "/v1/models/" + "a" * 5000,
        "/%00",
        "/v1/models/%ff%fe",
    ],
)
def test_paths_lead_nowhere_but_to_routes(app: Any, path: str) -> None:
    reply = call(app, "GET", path)
    assert reply.status_code in (400, 404)
    assert "root:" not in reply.text


def test_a_parameter_is_said_once(app: Any) -> None:
    reply = call(app, "GET", "/semblend/state?since=true&since=2")
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "since"


def test_the_api_is_as_its_description_says() -> None:
    pytest.importorskip("schemathesis", reason="pip install schemathesis")
    from benchmarks.fuzz import api

    sent, failures = api.fuzz(40, seed=1)
    assert failures == []
    assert sent >= 40
