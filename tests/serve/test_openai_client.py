"""Promise: OpenAI's own client works against the server, whole and streamed."""

from __future__ import annotations

import asyncio
import runpy
import sys
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from tests.serve.support import MODEL_NAME, ROOT, Running, until
from tests.serve.texts import document, messages

SHORT = [{"role": "user", "content": "The compass is in the tower.\n\nQuestion: Where is it?"}]


def test_a_chat_is_answered_and_greedy_answers_repeat(client: openai.OpenAI) -> None:
    first, second = (
        client.chat.completions.create(
            model=MODEL_NAME, messages=SHORT, max_tokens=12, temperature=0
        )
        for _ in range(2)
    )
    choice = first.choices[0]
    assert choice.message.role == "assistant"
    assert choice.message.content == second.choices[0].message.content
    assert choice.finish_reason in {"stop", "length"}
    assert first.usage is not None
    assert first.usage.total_tokens == first.usage.prompt_tokens + first.usage.completion_tokens
    assert 1 <= first.usage.completion_tokens <= 12


def test_a_stream_says_the_same_as_the_whole_reply(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL_NAME, messages=SHORT, max_tokens=12)
    chunks = list(
        client.chat.completions.create(
            model=MODEL_NAME,
            messages=SHORT,
            max_tokens=12,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == (
        whole.choices[0].finish_reason
    )
    assert [c.usage is not None for c in chunks] == [False] * (len(chunks) - 1) + [True]
    assert whole.usage is not None
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_completions_take_text_and_token_ids_alike(client: openai.OpenAI, engine) -> None:  # type: ignore[no-untyped-def]
    text = "Once upon a time there was a"
    ids = engine.tokenizer(text, add_special_tokens=False)["input_ids"]
    answers = {
        client.completions.create(model=MODEL_NAME, prompt=prompt, max_tokens=8).choices[0].text
        for prompt in (text, [text], ids, [ids])
    }
    assert len(answers) == 1
    streamed = client.completions.create(model=MODEL_NAME, prompt=text, max_tokens=8, stream=True)
    assert "".join(c.choices[0].text for c in streamed if c.choices) == answers.pop()


def test_stop_strings_end_the_answer_and_are_not_shown(client: openai.OpenAI) -> None:
    free = client.completions.create(
        model=MODEL_NAME, prompt="One two three four", max_tokens=24
    ).choices[0]
    stop = free.text.strip().split(" ")[1]
    cut = client.completions.create(
        model=MODEL_NAME, prompt="One two three four", max_tokens=24, stop=[stop]
    ).choices[0]
    assert cut.finish_reason == "stop"
    assert stop not in cut.text
    assert free.text.startswith(cut.text)


def test_a_seed_makes_sampling_repeatable(client: openai.OpenAI) -> None:
    def sample(seed: int) -> str:
        return (
            client.completions.create(
                model=MODEL_NAME, prompt="A list of words:", max_tokens=16, temperature=1, seed=seed
            )
            .choices[0]
            .text
        )

    assert sample(7) == sample(7)
    assert len({sample(seed) for seed in range(4)}) > 1


def test_log_probabilities_are_ordered_and_belong_to_the_tokens(client: openai.OpenAI) -> None:
    chat = client.chat.completions.create(
        model=MODEL_NAME, messages=SHORT, max_tokens=6, logprobs=True, top_logprobs=3
    ).choices[0]
    assert chat.logprobs is not None
    content = chat.logprobs.content
    assert content
    for entry in content:
        best = [other.logprob for other in entry.top_logprobs]
        assert len(best) == 3
        assert best == sorted(best, reverse=True)
        # Greedy: the token that stands there is the likeliest.
        assert entry.logprob == pytest.approx(best[0], abs=1e-5)
        assert entry.logprob <= 0
    text = client.completions.create(
        model=MODEL_NAME, prompt="One two three", max_tokens=6, logprobs=2
    ).choices[0]
    assert text.logprobs is not None
    assert text.logprobs.tokens is not None
    assert len(text.logprobs.tokens) == len(text.logprobs.token_logprobs or ()) == 6
    streamed = client.chat.completions.create(
        model=MODEL_NAME, messages=SHORT, max_tokens=6, logprobs=True, stream=True
    )
    seen = [
        entry.logprob
        for chunk in streamed
        for choice in chunk.choices
        if choice.logprobs is not None
        for entry in choice.logprobs.content or ()
    ]
    assert seen == pytest.approx([entry.logprob for entry in content])


def test_an_assistants_message_can_be_sent_back_as_it_came(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(model=MODEL_NAME, messages=SHORT, max_tokens=4)
    again = client.chat.completions.create(
        model=MODEL_NAME,
        messages=[
            *SHORT,
            reply.choices[0].message.model_dump(),  # type: ignore[list-item]
            {"role": "user", "content": [{"type": "text", "text": "Are you sure?"}]},
        ],
        max_completion_tokens=4,
        user="somebody",
        metadata={"a": "b"},
    )
    assert again.usage is not None
    assert reply.usage is not None
    assert again.usage.prompt_tokens > reply.usage.prompt_tokens


def test_models_are_listed_and_found_by_name(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL_NAME]
    assert client.models.retrieve(MODEL_NAME).id == MODEL_NAME
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("another/model")


def test_errors_arrive_as_the_clients_own_types(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL_NAME, messages=SHORT, n=99)
    assert caught.value.param == "n"
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-oops", messages=SHORT)
    assert missing.value.code == "model_not_found"


def test_the_async_client_works_too(server: Running) -> None:
    async def ask() -> tuple[str, str]:
        async with openai.AsyncOpenAI(
            base_url=server.v1, api_key="unused", max_retries=0
        ) as client:
            whole = await client.chat.completions.create(
                model=MODEL_NAME, messages=SHORT, max_tokens=6
            )
            stream = await client.chat.completions.create(
                model=MODEL_NAME, messages=SHORT, max_tokens=6, stream=True
            )
            pieces = [c.choices[0].delta.content or "" async for c in stream if c.choices]
            return whole.choices[0].message.content or "", "".join(pieces)

    whole, streamed = asyncio.run(ask())
    assert whole == streamed


def test_concurrent_requests_are_answered_as_alone(client: openai.OpenAI) -> None:
    prompts = [messages("Answer.", document(seed, 6), "What was kept?") for seed in range(300, 306)]

    def ask(prompt: list[dict[str, str]]) -> str:
        reply = client.chat.completions.create(
            model=MODEL_NAME,
            messages=prompt,  # type: ignore[arg-type]
            max_tokens=8,
            extra_body={"semblend": {"reuse": False, "donate": False}},
        )
        return reply.choices[0].message.content or ""

    alone = [ask(prompt) for prompt in prompts]
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(ask, prompts)) == alone


def test_the_example_shows_reuse(
    server: Running, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["openai_client.py", server.v1])
    example = runpy.run_path(str(ROOT / "examples" / "openai_client.py"))
    before = server.context.engine.stats().registrations
    with openai.OpenAI(base_url=server.v1, api_key="unused") as client:
        example["ask"](client, MODEL_NAME, "Read the list and answer.", "What does shelf 7 hold?")
        until(lambda: server.context.engine.stats().registrations > before, "a donor")
    example["main"]()
    assert "materialised" in capsys.readouterr().out
