"""What callers send: bodies, headers, and the operator's key file."""

from __future__ import annotations

import contextlib
import json
from functools import cache

from pydantic import BaseModel, ValidationError

from benchmarks.fuzz.scratch import scratch_file
from semblend.core.errors import SemBlendError
from semblend.serve import edge_checks
from semblend.serve.api_errors import ApiError, from_validation
from semblend.serve.auth import Authenticator, KeyRing, checked_name
from semblend.serve.openai.schemas import ChatBody, CompletionBody
from semblend.serve.options import ServeOptions

KEY = "sk-0123456789abcdef"


def chat_body(data: bytes) -> None:
    """A chat body, up to its model."""
    _body(data, ChatBody)


def completion_body(data: bytes) -> None:
    """A completion body."""
    _body(data, CompletionBody)


def _body(data: bytes, model: type[BaseModel]) -> None:
    """Like FastAPI: JSON, the model, and on refusal our own message, which must be JSON."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):  # the framework answers 400 to both
        return
    try:
        model.model_validate(value)
    except ValidationError as error:
        refusal = from_validation([dict(item) for item in error.errors()])
        json.loads(bytes(refusal.response().body))


def headers(data: bytes) -> None:
    """Headers as received: one per line, name: value."""
    lines = (line.partition(":") for line in data.decode("latin-1").splitlines())
    given = {name.strip().lower(): value.strip() for name, _, value in lines}
    edge_checks._request_id(given.get("x-request-id"))
    edge_checks._host(given.get("host", ""))
    for authenticator in _authenticators():
        try:
            authenticator.identify(given)
        except ApiError as error:
            error.response()
    try:
        checked_name("x-chat-template-id", given.get("x-chat-template-id", ""))
    except ApiError as error:
        error.response()


def key_file(data: bytes) -> None:
    """A key file."""
    with contextlib.suppress(SemBlendError):
        KeyRing.from_file(scratch_file(data, ".fuzzed-keys")).find(KEY)


@cache
def _authenticators() -> tuple[Authenticator, ...]:
    listed = {"keys": {KEY: {"tenant": "a", "admin": True}}}
    keys = scratch_file(json.dumps(listed).encode(), ".keys")
    return tuple(
        Authenticator(ServeOptions(model_name="m", key_file=file, trust_tenant_header=trust))
        for file in (None, keys)
        for trust in (False, True)
    )


def chat_seeds() -> list[bytes]:
    """Valid chats."""
    message = {"role": "user", "content": [{"type": "text", "text": "hello"}]}
    full = {
        "model": "m",
        "messages": [{"role": "system", "content": "be"}, message],
        "max_tokens": 3,
        "temperature": 0.5,
        "stop": ["a"],
        "stream": True,
        "stream_options": {"include_usage": True},
        "logprobs": True,
        "top_logprobs": 2,
        "semblend": {"reuse": True, "policy": "none"},
        "tools": [],
    }
    return [json.dumps(full).encode(), b'{"model": "m", "messages": []}']


def completion_seeds() -> list[bytes]:
    """Valid completions."""
    return [
        json.dumps({"model": "m", "prompt": prompt, "cache_salt": "s", "seed": 1}).encode()
        for prompt in ("hello", [1, 2, 3], [[1, 2]], ["hello"])
    ]


def header_seeds() -> list[bytes]:
    """Valid headers."""
    return [
        f"host: localhost:8000\nauthorization: Bearer {KEY}\nx-request-id: a-1".encode(),
        b"host: [::1]:80\nx-tenant-id: acme\nx-chat-template-id: t/1\nauthorization: Basic x",
    ]


def key_file_seeds() -> list[bytes]:
    """A valid file."""
    keys = {KEY: "acme", "sha256:" + "0" * 64: {"tenant": "ops", "admin": True}}
    return [json.dumps({"keys": keys}).encode()]
