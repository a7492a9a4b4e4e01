"""Promises: exact hits alone are "cached"; reuse is reported as confirmed; tenants stay apart."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest

from tests.serve.support import MODEL_NAME, Running, until
from tests.serve.texts import document, messages

QUESTION = "Where was the lamp kept?"


def ask(
    server: Running, prompt: list[dict[str, str]], *, stream: bool = False, **extra: Any
) -> httpx.Response:
    headers = extra.pop("headers", {})
    response = httpx.post(
        f"{server.v1}/chat/completions",
        json={
            "model": MODEL_NAME,
            "messages": prompt,
            "max_tokens": 4,
            "temperature": 0,
            "stream": stream,
            **extra,
        },
        headers=headers,
        timeout=120,
    )
    assert response.status_code == 200, response.text
    return response


def report(response: httpx.Response) -> dict[str, Any]:
    return dict(response.json()["semblend"])


def donated(server: Running, count: int) -> None:
    """Donors are made off the request path: wait until they are there."""
    until(lambda: server.context.engine.stats().registrations >= count, "a donor")


def donate(server: Running, prompt: list[dict[str, str]], **extra: Any) -> httpx.Response:
    before = server.context.engine.stats().registrations
    response = ask(server, prompt, **extra)
    donated(server, before + 1)
    return response


def test_a_document_behind_a_new_instruction_is_reused_and_not_called_cached(
    server: Running,
) -> None:
    text = document(1)
    first = donate(server, messages("Answer briefly.", text, QUESTION))
    assert report(first)["outcome"] == "cold"
    second = ask(server, messages("You are an archivist. Think well, then say.", text, QUESTION))
    seen = report(second)
    assert seen["outcome"] == "materialised"
    assert seen["reused_tokens"] > 0.5 * seen["prompt_tokens"]
    assert (
        seen["exact_tokens"] + seen["reused_tokens"] + seen["computed_tokens"]
        == seen["prompt_tokens"]
    )
    assert seen["donors"] == len(seen["donor_ids"]) >= 1
    assert seen["certified"] is False
    usage = second.json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == seen["exact_tokens"]
    assert usage["prompt_tokens_details"]["cached_tokens"] < seen["reused_tokens"]


def test_a_repeated_prompt_is_cached_and_not_called_reused(server: Running) -> None:
    prompt = messages("Answer briefly.", document(2), QUESTION)
    donate(server, prompt)
    again = ask(server, prompt)
    seen = report(again)
    assert seen["outcome"] == "exact_prefix"
    assert seen["reused_tokens"] == 0
    cached = again.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached == seen["exact_tokens"] > 0.9 * seen["prompt_tokens"]


def test_headers_and_body_tell_the_same_story(server: Running) -> None:
    text = document(3)
    donate(server, messages("Answer.", text, QUESTION))
    response = ask(server, messages("Read this first, please.", text, QUESTION))
    seen = report(response)
    for name in ("outcome", "policy"):
        assert response.headers[f"x-semblend-{name}"] == seen[name]
    for name in ("exact", "reused", "hole", "recomputed", "computed"):
        assert response.headers[f"x-semblend-{name}-tokens"] == str(seen[f"{name}_tokens"])
    assert response.headers["x-semblend-donors"] == str(seen["donors"])
    assert response.headers["x-semblend-certified"] == "false"
    assert float(response.headers["x-semblend-ttft-ms"]) == seen["times"]["ttft_ms"]
    assert float(response.headers["x-semblend-total-ms"]) >= seen["times"]["ttft_ms"]


@pytest.mark.parametrize("include_usage", [False, True])
def test_the_last_streamed_chunk_carries_the_report(server: Running, include_usage: bool) -> None:
    text = document(4 + include_usage)
    donate(server, messages("Answer.", text, QUESTION))
    response = ask(
        server,
        messages("Read this first, please.", text, QUESTION),
        stream=True,
        **({"stream_options": {"include_usage": True}} if include_usage else {}),
    )
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    chunks = [json.loads(line) for line in lines[:-1]]
    assert [("semblend" in chunk) for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1]["semblend"]["outcome"] == "materialised"
    assert ("usage" in chunks[-1]) is include_usage
    # The first token was there when the headers left: what happened to the prompt was known.
    assert response.headers["x-semblend-outcome"] == "materialised"
    assert response.headers["x-semblend-reused-tokens"] == str(
        chunks[-1]["semblend"]["reused_tokens"]
    )


def test_tenants_never_share_donors(shared: Running) -> None:
    text = document(6)
    alice, bob = {"x-tenant-id": "alice"}, {"x-tenant-id": "bob"}
    donate(shared, messages("Answer.", text, QUESTION), headers=alice)
    changed = messages("Read this first, please.", text, QUESTION)
    foreign = report(ask(shared, changed, headers=bob))
    assert (foreign["outcome"], foreign["donors"], foreign["donor_ids"]) == ("cold", 0, [])
    assert (foreign["exact_tokens"], foreign["reused_tokens"]) == (0, 0)
    own = report(ask(shared, changed, headers=alice))
    assert own["outcome"] == "materialised"
    repeated = report(ask(shared, messages("Answer.", text, QUESTION), headers=bob))
    assert repeated["outcome"] != "exact_prefix" or repeated["exact_tokens"] == 0


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        ({"cache_salt": "s1"}, {"cache_salt": "s2"}),
        ({"cache_salt": "s3"}, {}),
        ({"cache_salt": "none"}, {}),
        ({"headers": {"x-chat-template-id": "t1"}}, {"headers": {"x-chat-template-id": "t2"}}),
    ],
)
def test_salts_and_templates_keep_donors_apart(
    server: Running, mine: dict[str, Any], theirs: dict[str, Any]
) -> None:
    text = document(10 + len(str(mine)) + len(str(theirs)))
    donate(server, messages("Answer.", text, QUESTION), **dict(mine))
    changed = messages("Read this first, please.", text, QUESTION)
    assert report(ask(server, changed, **dict(theirs)))["reused_tokens"] == 0
    assert report(ask(server, changed, **dict(mine)))["reused_tokens"] > 0


def test_donor_names_are_opaque_and_a_tenants_own(shared: Running) -> None:
    text = document(80)
    names: dict[str, list[str]] = {}
    for tenant in ("carol", "dave"):
        headers = {"x-tenant-id": tenant, "x-request-id": "the-same-id"}
        donate(shared, messages("Answer.", text, QUESTION), headers=headers)
        seen = report(
            ask(shared, messages("Read this first, please.", text, QUESTION), headers=headers)
        )
        assert seen["donors"] == 1
        names[tenant] = seen["donor_ids"]
    assert names["carol"] != names["dave"]
    for name in (*names["carol"], *names["dave"]):
        assert len(name) == 16
        assert int(name, 16) >= 0


def test_a_request_may_ask_to_be_computed_cold(server: Running, client: openai.OpenAI) -> None:
    text = document(90)
    donate(server, messages("Answer.", text, QUESTION))
    cold = client.chat.completions.create(
        model=MODEL_NAME,
        messages=messages("Read this first, please.", text, QUESTION),  # type: ignore[arg-type]
        max_tokens=2,
        extra_body={"semblend": {"reuse": False}},
    )
    assert cold.model_extra is not None
    assert cold.model_extra["semblend"]["reused_tokens"] == 0


def test_a_conversation_over_reused_text_continues_and_says_so(server: Running) -> None:
    text = document(41)
    donate(server, messages("Answer briefly.", text, QUESTION))
    opening = messages("Answer in one word, please.", text, QUESTION)
    first = ask(server, opening)
    assert report(first)["approximate"] is True
    said = first.json()["choices"][0]["message"]["content"]
    following = [
        *opening,
        {"role": "assistant", "content": said},
        {"role": "user", "content": "Who held the lamp?"},
    ]
    other = report(ask(server, following, cache_salt="somebody-else"))
    assert (other["continued_tokens"], other["approximate"]) == (0, False)
    response = ask(server, following)
    second, usage = report(response), response.json()["usage"]
    assert (second["outcome"], second["approximate"]) == ("continued", True)
    assert second["continued_tokens"] > 100
    assert usage["prompt_tokens_details"]["cached_tokens"] == second["exact_tokens"]
    placed = second["exact_tokens"] + second["continued_tokens"]
    assert placed + second["computed_tokens"] == second["prompt_tokens"]
    assert response.headers["x-semblend-continued-tokens"] == str(second["continued_tokens"])
    assert response.headers["x-semblend-approximate"] == "true"
