"""Promise: what agents and chat clients send is answered, or refused by the field's name."""

from __future__ import annotations

import copy
from typing import Any

import httpx
import openai
import pytest

from semblend.serve.openai.chat_messages import Message, Tool
from semblend.serve.openai.chat_template import ChatTemplate
from tests.serve.support import MODEL_NAME, Running, until
from tests.serve.texts import document

CALL = {
    "id": "call00001",
    "type": "function",
    "function": {"name": "search", "arguments": '{"query": "mill"}'},
}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Find passages.",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}},
    },
}
LOOP: list[dict[str, Any]] = [
    {"role": "system", "content": "You are an agent."},
    {"role": "user", "content": "Who keeps the mill?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call00001", "content": "The keeper is Bradorn."},
]


def post(server: Running, path: str, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(f"{server.url}{path}", json={"model": MODEL_NAME, **body}, timeout=120)


def ask(client: openai.OpenAI, messages: Any, **options: Any) -> Any:
    options = {"max_tokens": 8, "temperature": 0, **options}
    return client.chat.completions.create(model=MODEL_NAME, messages=messages, **options)


def rendered(server: Running, **body: Any) -> str:
    tokens = post(server, "/tokenize", body).json()["tokens"]
    text: str = post(server, "/detokenize", {"tokens": tokens}).json()["prompt"]
    return text


def test_a_tool_loop_is_answered_and_reaches_the_model_whole(
    client: openai.OpenAI, server: Running
) -> None:
    assert ask(client, LOOP, tools=[TOOL]).choices[0].message.role == "assistant"
    text = rendered(server, messages=LOOP, tools=[TOOL])
    # This model's template knows no tools; they must not be dropped in silence.
    for said in ('"name": "search"', "Find passages.", '"query": "mill"', "Bradorn"):
        assert said in text
    assert "None" not in text
    assert "Find passages." not in rendered(server, messages=LOOP)


def test_tools_that_may_not_be_called_are_not_shown(client: openai.OpenAI) -> None:
    none = ask(client, LOOP, tools=[TOOL], tool_choice="none")
    assert none.usage.prompt_tokens == ask(client, LOOP).usage.prompt_tokens
    assert none.usage.prompt_tokens < ask(client, LOOP, tools=[TOOL]).usage.prompt_tokens


def test_an_assistant_that_said_nothing_is_no_error(client: openai.OpenAI) -> None:
    messages = [LOOP[1], {"role": "assistant", "content": None}, LOOP[1]]
    assert ask(client, messages).choices[0].finish_reason in ("stop", "length")


def test_an_image_is_refused_for_its_own_request_only(client: openai.OpenAI) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    parts = [{"type": "text", "text": "What is this?"}, image]
    with pytest.raises(openai.BadRequestError) as refusal:
        ask(client, [{"role": "user", "content": parts}])
    assert refusal.value.param == "messages[0].content[1]"
    assert "images are not supported" in str(refusal.value)
    assert ask(client, [{"role": "user", "content": parts[:1]}]).choices


QWEN_LIKE = (
    "{% if tools %}TOOLS {{ tools | tojson }}\n{% endif %}"
    "{% for m in messages %}<{{ m.role }}>"
    "{% if m.role == 'assistant' and not loop.last %}{{ m.content.split('</think>')[-1] }}"
    "{% else %}{{ m.content }}{% endif %}"
    "{% for c in m.tool_calls or [] %}CALL {{ c.function.name }} "
    "{{ c.function.arguments.query }}{% endfor %}\n{% endfor %}"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
)


@pytest.fixture
def template(engine: Any) -> ChatTemplate:
    tokenizer = copy.copy(engine.tokenizer)
    tokenizer.chat_template = QWEN_LIKE
    return ChatTemplate(tokenizer)


def messages_of(*raw: dict[str, Any]) -> list[Message]:
    return [Message.model_validate(one) for one in raw]


def test_a_template_that_knows_tools_gets_them_with_arguments_as_an_object(
    template: ChatTemplate,
) -> None:
    text = template.render(messages_of(*LOOP), [Tool.model_validate(TOOL)], {})
    assert text.startswith('TOOLS [{"type": "function"')
    assert "CALL search mill" in text
    assert "<tool>The keeper is Bradorn." in text
    assert "<tool_call>" not in text


def test_template_variables_reach_the_template(template: ChatTemplate) -> None:
    messages = messages_of(LOOP[1])
    assert "<think></think>" in template.render(messages, [], {"enable_thinking": False})
    assert "<think></think>" not in template.render(messages, [], {"enable_thinking": True})


def test_thinking_that_a_template_strips_is_not_in_the_next_turn(template: ChatTemplate) -> None:
    thought = {"role": "assistant", "content": "<think>hm</think>Bradorn."}
    text = template.render(messages_of(LOOP[1], thought, LOOP[1]), [], {})
    assert "hm" not in text
    assert "<assistant>Bradorn." in text


def test_a_new_date_in_the_system_prompt_does_not_cost_the_document(
    client: openai.OpenAI, server: Running
) -> None:
    def turn(date: str) -> Any:
        return ask(
            client,
            [
                {"role": "system", "content": f"Today is {date}. Answer from the document."},
                {"role": "user", "content": f"{document(77)}\n\nWhat is it about?"},
            ],
            extra_body={"cache_salt": "dates"},
        )

    def donors() -> int:
        stats: int = server.context.engine.stats().registrations
        return stats

    before = donors()
    turn("Monday, 2 March 2026")
    until(lambda: donors() > before, "the donor")
    report = turn("Tuesday, 3 March 2026").model_extra["semblend"]
    assert report["reused_tokens"] > 0.5 * report["prompt_tokens"]


def test_n_answers_have_seeds_of_their_own_and_one_prompt(client: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": "Write a few words about a river."}]
    many = ask(client, messages, n=3, temperature=1.5, seed=7, max_tokens=12)
    assert [choice.index for choice in many.choices] == [0, 1, 2]
    texts = [choice.message.content for choice in many.choices]
    assert len(set(texts)) == 3
    alone = ask(client, messages, temperature=1.5, seed=7, max_tokens=12)
    assert alone.choices[0].message.content == texts[0]
    assert many.usage.prompt_tokens == alone.usage.prompt_tokens
    assert many.usage.completion_tokens > alone.usage.completion_tokens
    assert all("semblend" in choice.model_extra for choice in many.choices)
    assert "semblend" not in alone.choices[0].model_extra


def test_a_stream_of_n_answers_says_the_same(client: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": "Write a few words about a river."}]
    options: dict[str, Any] = {"n": 2, "temperature": 1.5, "seed": 7, "max_tokens": 12}
    whole = ask(client, messages, **options)
    texts = ["", ""]
    ends, usage = [], None
    stream = ask(client, messages, stream=True, stream_options={"include_usage": True}, **options)
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            if choice.finish_reason:
                ends.append(choice.index)
    assert texts == [choice.message.content for choice in whole.choices]
    assert ends == [0, 1]
    assert usage is not None
    assert usage.completion_tokens == whole.usage.completion_tokens


def test_several_prompts_are_answered_in_order_as_each_alone(
    client: openai.OpenAI, engine: Any
) -> None:
    def complete(prompt: Any, **more: Any) -> Any:
        return client.completions.create(
            model=MODEL_NAME, prompt=prompt, max_tokens=6, temperature=0, **more
        )

    texts = ["The river flows", "Two hills stand"]
    alone = [complete(text).choices[0].text for text in texts]
    together = complete(texts)
    assert [choice.text for choice in together.choices] == alone
    ids = [engine.tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    assert [choice.text for choice in complete(ids).choices] == alone
    assert together.usage.prompt_tokens == sum(map(len, ids))
    assert [choice.index for choice in complete(texts, n=2).choices] == [0, 1, 2, 3]


def test_penalties_and_biases_change_the_answer(client: openai.OpenAI) -> None:
    def said(**options: Any) -> list[str]:
        reply = client.completions.create(
            model=MODEL_NAME,
            prompt="one two one two one two one two one two",
            max_tokens=24,
            temperature=0,
            logprobs=1,
            extra_body={"ignore_eos": True, **options.pop("extra_body", {})},
            **options,
        )
        return list(reply.choices[0].logprobs.tokens)

    plain = said()
    assert len(set(plain)) < len(plain)
    assert len(set(said(presence_penalty=2.0, frequency_penalty=2.0))) > len(set(plain))
    assert said(extra_body={"repetition_penalty": 5.0}) != plain
    biased = said(logit_bias={"500": 100})
    assert len(set(biased)) == 1


def test_min_p_of_one_keeps_the_likeliest_token_only(client: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": "Write a few words about a river."}]
    greedy = ask(client, messages)
    hot = ask(client, messages, temperature=2.0, extra_body={"min_p": 1.0})
    assert hot.choices[0].message.content == greedy.choices[0].message.content


def test_tokenize_and_detokenize_are_inverse_and_version_is_told(server: Running) -> None:
    text = "The keeper of the mill."
    found = post(server, "/tokenize", {"prompt": text, "return_token_strs": True}).json()
    assert found["count"] == len(found["tokens"]) == len(found["token_strs"])
    assert found["max_model_len"] > 1000
    assert post(server, "/detokenize", {"tokens": found["tokens"]}).json()["prompt"] == text
    chat = post(server, "/tokenize", {"messages": [LOOP[1]]}).json()
    asked = post(server, "/v1/chat/completions", {"messages": [LOOP[1]], "max_tokens": 1}).json()
    assert chat["count"] == asked["usage"]["prompt_tokens"]
    assert httpx.get(f"{server.url}/version").json()["server"] == "semblend"
    wrong = post(server, "/tokenize", {"prompt": "a", "messages": [LOOP[1]]})
    assert wrong.status_code == 400
    assert wrong.json()["error"]["param"] == "prompt"
