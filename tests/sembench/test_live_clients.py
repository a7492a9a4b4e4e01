"""Clients over real HTTP: true first tokens, and every fault an error, never an exception."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import uvicorn  # noqa: F401 - a server is started below; fail early where there is none
from fastapi import FastAPI
from fastapi.responses import StreamingResponse

from sembench.errors import EndpointError
from sembench.live.client import StreamingClient
from sembench.live.identity import RequestIdentity, RequestName, our_id_in
from sembench.live.openai_client import OpenAIClient, OpenAIReader, Route
from sembench.live.prompt import Prompt
from sembench.live.reply import Reply
from sembench.live.reply_rows import mean_kl
from sembench.live.sglang_client import SglangClient, SglangReader
from sembench.live.verify import verify
from sembench.mock_engine import Cheat, MockFault
from tests.sembench.mock_runs import mock_engine

PROMPT = "The gate code of Arlen is 4711. What is the gate code of Arlen?"

Maker = Callable[..., StreamingClient]


def openai_client(url: str, *, timeout_seconds: float = 20.0, **more: Any) -> OpenAIClient:
    return OpenAIClient(
        base_url=url,
        model="mock-model",
        caller=RequestIdentity(tenant="t"),
        timeout_seconds=timeout_seconds,
        **more,
    )


def completions_client(url: str, **more: Any) -> OpenAIClient:
    return openai_client(url, route=Route.COMPLETIONS, **more)


def sglang_client(url: str, *, timeout_seconds: float = 20.0) -> SglangClient:
    return SglangClient(base_url=url, caller=RequestIdentity(), timeout_seconds=timeout_seconds)


CLIENTS = pytest.mark.parametrize("make", [openai_client, completions_client, sglang_client])


def ask(client: StreamingClient, text: str = PROMPT, **options: Any) -> Reply:
    async def go() -> Reply:
        async with client:
            return await client.complete(
                Prompt(request_id="id-1", text=text, max_tokens=20, **options)
            )

    return asyncio.run(go())


@CLIENTS
def test_an_answer_has_text_counts_and_times_in_order(make: Maker) -> None:
    with mock_engine(prefill_ms_per_token=1.0, decode_ms_per_token=1.0) as url:
        reply = ask(make(url))
    assert reply.ok
    assert "4711" in reply.text
    assert reply.prompt_tokens == 16
    assert reply.cached_tokens == 0
    assert reply.ttft_ms is not None
    # The engine sleeps 16 ms before its first token and more before its last.
    assert 16.0 <= reply.ttft_ms <= reply.latency_ms
    assert "id-1" in (reply.engine_request_id or "")


@CLIENTS
def test_log_probabilities_come_back_a_position_at_a_time(make: Maker) -> None:
    with mock_engine() as url:
        reply = ask(make(url), top_logprobs=3)
    assert reply.top_logprobs is not None
    assert len(reply.top_logprobs) == reply.output_tokens
    assert all(len(position) == 3 for position in reply.top_logprobs)


@CLIENTS
@pytest.mark.parametrize(
    "fault", [MockFault.ERROR, MockFault.DISCONNECT, MockFault.GARBAGE, MockFault.STALL]
)
def test_every_fault_is_the_replys_error(make: Maker, fault: MockFault) -> None:
    with mock_engine(fault=fault, fault_every=1, stall_seconds=1.5) as url:
        reply = ask(make(url, timeout_seconds=0.5))
    assert not reply.ok
    assert reply.error


def test_an_endpoint_that_is_not_there_is_an_error_too() -> None:
    reply = ask(openai_client("http://127.0.0.1:9"))
    assert not reply.ok
    assert "Connect" in (reply.error or "")


def test_a_silent_backend_leaves_counts_unknown_not_zero() -> None:
    with mock_engine(cheat=Cheat.MISSING_METRICS) as url:
        reply = ask(openai_client(url))
    assert reply.ok
    assert (reply.prompt_tokens, reply.cached_tokens, reply.reused_tokens) == (None, None, None)


def test_exact_and_semantic_reuse_are_told_apart() -> None:
    document = " ".join(f"w{number}" for number in range(100))

    async def go(url: str) -> list[Reply]:
        async with openai_client(url) as client:
            texts = (
                f"Start. {document}",
                f"Start. {document}",
                f"Other beginning of it: {document}",
            )
            return [
                await client.complete(Prompt(request_id=f"r{n}", text=text, max_tokens=2))
                for n, text in enumerate(texts)
            ]

    with mock_engine() as url:
        cold, repeat, moved = asyncio.run(go(url))
    assert cold.cached_tokens == 0
    assert repeat.exact_tokens == 96
    assert moved.exact_tokens == 0
    assert moved.reused_tokens is not None
    assert moved.reused_tokens >= 90
    assert moved.cached_tokens == moved.reused_tokens


def scripted(events: list[str]) -> FastAPI:
    app = FastAPI()

    async def stream() -> StreamingResponse:
        return StreamingResponse(iter(events), media_type="text/event-stream")

    app.add_api_route("/v1/chat/completions", stream, methods=["POST"], response_model=None)
    return app


async def replay_script(events: list[str]) -> Reply:
    async with openai_client("http://scripted") as client:
        await client._http.aclose()
        client._http = httpx.AsyncClient(transport=httpx.ASGITransport(app=scripted(events)))
        return await client.complete(Prompt(request_id="r", text="x", max_tokens=4))


@pytest.mark.parametrize(
    ("events", "error"),
    [
        (["data: {}\n\n"], "end mark"),
        (["data: [DONE]\n\n"], "no content"),
        (["data: [1]\n\n"], "not an object"),
        (['data: {"error": {"message": "overloaded"}}\n\n'], "overloaded"),
        (['data: {"choices": [3]}\n\n'], "not shaped"),
        (['data: {"choices": [{"delta": {"content": ""}}]}\n\n', "data: [DONE]\n\n"], "no content"),
    ],
)
def test_streams_that_break_the_protocol_are_named(events: list[str], error: str) -> None:
    assert error in (asyncio.run(replay_script(events)).error or "")


def test_reasoning_counts_as_the_first_token_and_not_as_the_answer() -> None:
    reply = asyncio.run(
        replay_script(
            [
                'data: {"choices": [{"delta": {"reasoning_content": "hm"}}]}\n\n',
                'data: {"choices": [{"delta": {"content": "yes"}}]}\n\n',
                "data: [DONE]\n\n",
            ]
        )
    )
    assert reply.ok
    assert reply.text == "yes"
    assert reply.ttft_ms is not None


def test_impossible_tokens_have_a_number_one_can_calculate_with() -> None:
    choice = (
        '{"delta": {"content": "a"}, "logprobs": {"content": [{"token": "a", "logprob": -0.1, '
        '"top_logprobs": [{"token": "a", "logprob": -0.1}, {"token": "b", "logprob": -Infinity}, '
        '{"token": "c", "logprob": NaN}]}]}}'
    )
    reply = asyncio.run(replay_script([f'data: {{"choices": [{choice}]}}\n\n', "data: [DONE]\n\n"]))
    assert reply.ok
    assert reply.top_logprobs == ({"a": -0.1, "b": -1e4, "c": -1e4},)
    assert mean_kl(reply, reply) == 0.0


def test_request_ids_are_of_the_public_form_and_found_in_an_engines_own() -> None:
    name = RequestName(run_id="run", arm="warm", item_id="item", role="recipient", position=7)
    assert str(name).startswith("sembench-warm-000007-recipient-")
    assert str(name) == str(
        RequestName(run_id="run", arm="warm", item_id="item", role="recipient", position=7)
    )
    assert our_id_in(f"chatcmpl-{name}-0") == str(name)
    assert our_id_in("chatcmpl-123") is None


def test_verify_says_who_an_endpoint_is_and_what_it_reports() -> None:
    async def go(url: str, expect: str | None) -> dict[str, Any]:
        async with openai_client(url) as client:
            found = await verify(engine="gateway", base_url=url, client=client, expect_model=expect)
            return found.to_dict()

    with mock_engine() as url:
        found = asyncio.run(go(url, "mock-model"))
        assert found["models"] == ["mock-model"]
        assert found["reports"]["semantic_reuse"] is True
        with pytest.raises(EndpointError, match="not 'other'"):
            asyncio.run(go(url, "other"))
    with mock_engine(cheat=Cheat.MISSING_METRICS) as url:
        assert "cached_tokens" in asyncio.run(go(url, None))["warnings"][0]
    with pytest.raises(EndpointError):
        asyncio.run(go("http://127.0.0.1:9", None))


def test_vllms_account_in_kv_transfer_params_is_read_and_tells_exact_from_reused() -> None:
    reader = OpenAIReader()
    report = {"outcome": "materialised", "exact_tokens": 32, "reused_tokens": 600}
    reader.take(
        {
            "choices": [{"delta": {"content": "yes"}}],
            "usage": {"prompt_tokens": 700, "prompt_tokens_details": {"cached_tokens": 632}},
            "kv_transfer_params": {"semblend": report},
        }
    )
    reply = reader.reply("r")
    assert (reply.exact_tokens, reply.reused_tokens, reply.cached_tokens) == (32, 600, 632)
    assert reply.outcome == "materialised"
    assert reply.confirmed_by == "response"


def test_sglangs_account_in_meta_info_is_read() -> None:
    reader = SglangReader()
    report = {"outcome": "materialised", "exact_tokens": 16, "reused_tokens": 300}
    reader.take({"text": "yes", "meta_info": {"cached_tokens": 316, "semblend": [report]}})
    reply = reader.reply("r")
    assert (reply.exact_tokens, reply.reused_tokens, reply.cached_tokens) == (16, 300, 316)
    assert reply.outcome == "materialised"
