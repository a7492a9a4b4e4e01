"""Promise: every refusal has OpenAI's shape, names the field and says what would be right."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from semblend.planning.policies.base import policy_from_spec
from semblend.serve.app import create_app
from semblend.serve.openai.schemas import ChatBody, CompletionBody
from semblend.serve.options import ServeOptions
from tests.serve.fakes import ScriptedEngine
from tests.serve.support import MODEL_NAME, call

USER = {"role": "user", "content": "hello"}
CHAT = {"model": MODEL_NAME, "messages": [USER], "max_tokens": 1}
TEXT = {"model": MODEL_NAME, "prompt": "hello", "max_tokens": 1}


@pytest.fixture(scope="module")
def app() -> Any:
    return create_app(
        ScriptedEngine(),
        ServeOptions(
            model_name=MODEL_NAME, max_body_bytes=20_000, max_prompt_tokens=64, max_output_tokens=32
        ),
    )


def post(app: Any, path: str, body: Any, headers: Any = ()) -> httpx.Response:
    # Not httpx's own encoder: it refuses the lone surrogates that JSON can carry.
    sent = [*headers, (b"content-type", b"application/json")]
    return call(app, "POST", path, content=json.dumps(body), headers=sent)


def chat(app: Any, body: Any, headers: Any = ()) -> httpx.Response:
    return post(app, "/v1/chat/completions", body, headers)


def text(app: Any, body: Any) -> httpx.Response:
    return post(app, "/v1/completions", body)


def refused(response: httpx.Response, status: int, param: str | None, *words: str) -> None:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param
    for word in words:
        assert word in error["message"]


@pytest.mark.parametrize(
    ("change", "param", "word"),
    [
        ({"model": None}, "model", "required"),
        ({"model": 3}, "model", "string"),
        ({"messages": None}, "messages", "required"),
        ({"messages": []}, "messages", "at least 1"),
        ({"messages": "hello"}, "messages", "list"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "required"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role", "'user'"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content", "required"),
        (
            {"messages": [{**USER, "tool_calls": [{"function": {"name": "f"}}]}]},
            "messages[0].tool_calls",
            "only an assistant",
        ),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "string"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content[0]",
            "images are not supported: this model reads text",
        ),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages[0].content", "Unicode"),
        ({"messages": [{**USER, "colour": "red"}]}, "messages[0].colour", "unknown field"),
        ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
        ({"max_tokens": 33}, "max_tokens", "at most 32"),
        ({"max_tokens": 2.5}, "max_tokens", "integer"),
        ({"max_tokens": "5"}, "max_tokens", "integer"),
        ({"max_tokens": 2, "max_completion_tokens": 3}, "max_tokens", "send only one"),
        ({"temperature": -0.1}, "temperature", "greater than or equal to 0"),
        ({"temperature": 2.5}, "temperature", "less than or equal to 2"),
        ({"top_p": 0}, "top_p", "greater than 0"),
        ({"top_p": 1.5}, "top_p", "less than or equal to 1"),
        ({"top_k": -2}, "top_k", "greater than or equal to -1"),
        ({"seed": 2**63}, "seed", "less than or equal to"),
        ({"seed": True}, "seed", "integer"),
        ({"stop": ""}, "stop", "at least 1"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop", "at most 4"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]", "greater than or equal to 0"),
        ({"stream": "yes"}, "stream", "boolean"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "stream = true"),
        ({"top_logprobs": 2}, "top_logprobs", "logprobs = true"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "less than or equal to 20"),
        ({"cache_salt": ""}, "cache_salt", "at least 1"),
        ({"cache_salt": "a\nb"}, "cache_salt", "pattern"),
        ({"n": 17}, "n", "less than or equal to 16"),
        ({"n": 0}, "n", "greater than or equal to 1"),
        ({"best_of": 2}, "best_of", "only 1"),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "required"),
        ({"tools": [{"type": "code"}]}, "tools[0].type", "'function'"),
        ({"tool_choice": "required"}, "tool_choice", "'none' or 'auto'"),
        (
            {"chat_template_kwargs": {"tokenize": True}},
            "chat_template_kwargs.tokenize",
            "set by the server",
        ),
        ({"response_format": {"type": "yaml"}}, "response_format.type", "'json_schema'"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "only and always with"),
        ({"logit_bias": {"cat": 1}}, "logit_bias", "token ids"),
        ({"logit_bias": {"5": 101}}, "logit_bias", "-100 to 100"),
        ({"frequency_penalty": 2.5}, "frequency_penalty", "less than or equal to 2"),
        ({"presence_penalty": -3}, "presence_penalty", "greater than or equal to -2"),
        ({"repetition_penalty": 0}, "repetition_penalty", "greater than 0"),
        ({"min_p": 1.5}, "min_p", "less than or equal to 1"),
        ({"prediction": {}}, "prediction", "remove it"),
        ({"temperatur": 1}, "temperatur", "did you mean temperature?"),
        ({"semblend": {"reuse": 1}}, "semblend.reuse", "boolean"),
        ({"semblend": {"magic": 1}}, "semblend.magic", "unknown field"),
    ],
)
def test_a_wrong_field_is_named(app: Any, change: dict[str, Any], param: str, word: str) -> None:
    refused(chat(app, {**CHAT, **change}), 400, param, word)


@pytest.mark.parametrize(
    ("change", "param", "word"),
    [
        ({"prompt": None}, "prompt", "required"),
        ({"prompt": ""}, "prompt", "at least one token"),
        ({"prompt": []}, "prompt", "at least one token"),
        ({"prompt": ["a", ""]}, "prompt[1]", "at least one token"),
        ({"prompt": ["a"] * 65}, "prompt", "at most 64 prompts"),
        ({"prompt": [2**31]}, "prompt[0]", "less than"),
        ({"prompt": [16_384]}, "prompt", "below 16384"),
        ({"prompt": [1, "a"]}, "prompt[0]", "string"),
        ({"prompt": [[1.5]]}, "prompt[0][0]", "integer"),
        ({"prompt": [5] * 65}, "prompt", "at most 64"),
        ({"logprobs": -1}, "logprobs", "greater than or equal to 0"),
        ({"echo": True}, "echo", "only False"),
        ({"suffix": "x"}, "suffix", "only ''"),
    ],
)
def test_a_wrong_completion_field_is_named(
    app: Any, change: dict[str, Any], param: str, word: str
) -> None:
    refused(text(app, {**TEXT, **change}), 400, param, word)


def test_a_long_prompt_says_how_long_it_may_be(app: Any) -> None:
    long = {**CHAT, "messages": [{"role": "user", "content": "word " * 200}]}
    response = chat(app, long)
    refused(response, 400, "messages", "at most 64")
    assert response.json()["error"]["code"] == "context_length_exceeded"


def test_a_hopelessly_long_prompt_is_refused_before_it_is_tokenised(app: Any) -> None:
    longest = max(map(len, app.state.context.engine.tokenizer.get_vocab()))
    response = text(app, {**TEXT, "prompt": "x" * (64 * longest + 1)})
    refused(response, 400, "prompt", "characters", "at most 64 tokens")


def test_an_unknown_model_is_not_found(app: Any) -> None:
    refused(chat(app, {**CHAT, "model": "gpt-4"}), 404, "model", MODEL_NAME)
    refused(call(app, "GET", "/v1/models/gpt-4"), 404, "model", MODEL_NAME)


def test_a_policy_is_the_servers_choice_unless_it_says_otherwise(app: Any) -> None:
    body = {**CHAT, "semblend": {"policy": "none"}}
    refused(chat(app, body), 403, "semblend.policy", "--allow-policy-override")
    free = create_app(
        ScriptedEngine(), ServeOptions(model_name=MODEL_NAME, allow_policy_override=True)
    )
    assert chat(free, body).status_code == 200
    # What a response reports under a certificate can be asked for again.
    reported = "budget(edit_dependents(1, 8) + query_attention(0.2, 16, 'displaced'), 0.2)"
    again = policy_from_spec(f"depth_shift({reported})").spec
    assert chat(free, {**CHAT, "semblend": {"policy": again}}).status_code == 200
    wrong = {**CHAT, "semblend": {"policy": "nonsense"}}
    refused(chat(free, wrong), 400, "semblend.policy", "nonsense")
    split = {**CHAT, "semblend": {"policy": "none\r\nset-cookie: a=b"}}
    refused(chat(free, split), 400, "semblend.policy", "pattern")


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"\xff\xfe\x00",
        b"[" * 15_000,
        b'{"a": ' + b"9" * 6_000 + b"}",
        b"NaN",
        b"null",
        b'"text"',
        b"{}{}",
    ],
)
def test_a_body_that_is_no_json_object_is_refused(app: Any, raw: bytes) -> None:
    response = call(
        app,
        "POST",
        "/v1/chat/completions",
        content=raw,
        headers={"content-type": "application/json"},
    )
    assert response.status_code == 400, response.text
    assert "error" in response.json()


def test_other_content_types_are_refused(app: Any) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        response = call(
            app,
            "POST",
            "/v1/chat/completions",
            content=json.dumps(CHAT),
            headers={"content-type": kind},
        )
        refused(response, 415, "content-type", "application/json")


def test_a_large_body_is_refused_with_or_without_a_declared_length(app: Any) -> None:
    refused(chat(app, {**CHAT, "user": "x" * 20_000}), 413, None, "20000 bytes")

    async def endless() -> Any:
        while True:
            yield b" " * 1000

    response = call(
        app,
        "POST",
        "/v1/chat/completions",
        content=endless(),
        headers={"content-type": "application/json"},
    )
    refused(response, 413, None, "20000 bytes")
    assert response.headers["connection"] == "close"


def test_unknown_paths_and_methods_are_refused_in_the_same_shape(app: Any) -> None:
    refused(call(app, "GET", "/v1/nothing"), 404, None, "no such path")
    refused(call(app, "GET", "/../../etc/passwd"), 404, None, "no such path")
    refused(call(app, "GET", "/static/index.html"), 404, None, "no such path")
    refused(call(app, "DELETE", "/v1/models"), 405, None, "method")
    refused(call(app, "GET", "/semblend/state?since=-1"), 400, "since", "greater than")
    refused(call(app, "GET", "/semblend/state?since=x"), 400, "since", "integer")


def test_a_foreign_host_name_is_refused(app: Any) -> None:
    """A page on the web that rebinds its name to 127.0.0.1 must not reach a local server."""
    refused(call(app, "GET", "/health", headers={"host": "evil.example"}), 421, "host", "name")
    for name in ("localhost:8000", "127.0.0.1", "[::1]:8000"):
        assert call(app, "GET", "/health", headers={"host": name}).status_code == 200


@pytest.mark.parametrize("name", ["", " ", "a b", "é", "x" * 129, "-x", "a\x7f"])
def test_template_names_are_checked(app: Any, name: str) -> None:
    response = chat(app, CHAT, headers=[(b"x-chat-template-id", name.encode())])
    if name:
        refused(response, 400, "x-chat-template-id", "1 to 128")
    else:
        assert response.status_code == 200


def test_hostile_request_ids_are_replaced_and_sane_ones_kept(app: Any) -> None:
    kept = call(app, "GET", "/health", headers={"x-request-id": "sembench-warm-000001-a.b:c"})
    assert kept.headers["x-request-id"] == "sembench-warm-000001-a.b:c"
    for hostile in ("<script>", 'a"b', "x" * 500, "a b", "{}"):
        response = call(app, "GET", "/health", headers={"x-request-id": hostile})
        assert response.headers["x-request-id"] != hostile
        assert len(response.headers["x-request-id"]) == 32


def test_every_answer_carries_the_security_headers(app: Any) -> None:
    for path in ("/", "/health", "/v1/models", "/nothing"):
        headers = call(app, "GET", path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["cache-control"] == "no-store"
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert "server" not in headers


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4)
    ),
    max_leaves=12,
)
FIELDS = st.sampled_from(
    sorted({*ChatBody.model_fields, *CompletionBody.model_fields, "n", "tools"})
)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    base=st.sampled_from([CHAT, TEXT, {}]),
    change=st.dictionaries(FIELDS, JSON, max_size=3),
    path=st.sampled_from(["/v1/chat/completions", "/v1/completions"]),
)
def test_no_json_body_is_an_internal_error(
    app: Any, base: dict[str, Any], change: dict[str, Any], path: str
) -> None:
    response = post(app, path, {**base, **change})
    assert response.status_code in {200, 400, 403, 404}, response.text
    if response.status_code != 200:
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}


def test_the_openapi_description_is_complete_and_local(app: Any) -> None:
    description = call(app, "GET", "/openapi.json").json()
    paths = description["paths"]
    assert {"/v1/chat/completions", "/v1/completions", "/v1/models", "/health", "/metrics"} <= set(
        paths
    )
    page = call(app, "GET", "/docs")
    assert page.status_code == 200
    assert "/v1/chat/completions" in page.text
    assert "<script" not in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]
    for status in ("400", "401", "404", "413", "415", "429", "500", "503", "504"):
        assert status in paths["/v1/chat/completions"]["post"]["responses"]
