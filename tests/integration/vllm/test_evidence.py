"""The evidence's client drives a real engine: answers, sources, times, and an empty cache."""

from __future__ import annotations

import asyncio

import pytest
from benchmarks.evidence.engine import VllmClient
from benchmarks.evidence.workloads import WORKLOADS

from sembench.live.prompt import Prompt
from tests.integration.models import REFERENCE


@pytest.fixture(scope="module")
def tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(REFERENCE)


def prompt(ask, name):
    return Prompt(request_id=name, text=ask.text, max_tokens=8)


def test_a_crowd_is_answered_rightly_reuse_is_confirmed_and_emptying_forgets(
    make_engine, tokenizer
):
    engine = make_engine("reference", engine={"kv_cache_memory_bytes": 64 << 20})
    first, *asks = WORKLOADS["instructions"](0, 20, 400)
    (rank,) = (passage.rank for passage in first.passages)
    others = [ask for ask in asks if ask.passages[0].rank == rank][:2]

    async def together(client, asks, name):
        prompts = [prompt(ask, f"{name}-{number}") for number, ask in enumerate(asks)]
        replies = await asyncio.gather(*(client.complete(each) for each in prompts))
        await client.settle()
        return replies

    async def scene():
        client = VllmClient(engine.llm, tokenizer)
        try:
            alone = await together(client, [first], "alone")
            again = await together(client, [first, *others], "again")
            await client.empty()
            emptied = await together(client, [first], "emptied")
            huge = Prompt(request_id="huge", text=first.text * 9, max_tokens=8)
            refused = await client.complete(huge)
            assert 0 < client.decode_seconds < client.busy_seconds
            return alone, again, emptied, refused
        finally:
            await client.close()

    alone, again, emptied, refused = asyncio.run(scene())
    assert alone[0].exact_tokens == alone[0].reused_tokens == 0
    assert again[0].exact_tokens > 256
    assert (emptied[0].exact_tokens, emptied[0].reused_tokens) == (0, 0)
    assert emptied[0].text == alone[0].text
    for reply in again:
        assert reply.error is None
        assert len(reply.gaps_ms) == reply.output_tokens - 1 == 7
        assert 0 < reply.ttft_ms <= reply.latency_ms
        assert reply.ttft_ms + sum(reply.gaps_ms) == pytest.approx(reply.latency_ms)
        assert reply.exact_tokens + reply.reused_tokens <= reply.prompt_tokens
    assert first.answers[0] in again[0].text
    assert all(reply.reused_tokens > 100 for reply in again[1:])
    assert refused.error is not None
    assert refused.ttft_ms is None
