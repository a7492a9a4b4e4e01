"""Promise: an answer asked for as JSON of a schema is that, or the request is refused by name."""

from __future__ import annotations

import importlib.util
import json
from typing import Any

import openai
import pytest

from tests.serve.support import MODEL_NAME

INSTALLED = importlib.util.find_spec("llguidance") is not None
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "floors": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "floors"],
    "additionalProperties": False,
}


def ask(client: openai.OpenAI, schema: Any = SCHEMA, **options: Any) -> Any:
    return client.chat.completions.create(
        model=MODEL_NAME,
        messages=[{"role": "user", "content": "Describe the tower."}],
        response_format={"type": "json_schema", "json_schema": {"name": "t", "schema": schema}},
        **{"max_tokens": 64, "temperature": 0, **options},
    )


@pytest.mark.skipif(not INSTALLED, reason="needs the json extra")
@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_the_answer_is_json_of_the_schema_and_ends_by_itself(
    client: openai.OpenAI, seed: int | None
) -> None:
    reply = ask(client, seed=seed, temperature=0.0 if seed is None else 1.5)
    assert reply.choices[0].finish_reason == "stop"
    answer = json.loads(reply.choices[0].message.content)
    assert set(answer) == {"name", "floors"}
    assert len(answer["name"]) <= 8
    assert 0 <= answer["floors"] <= 99


@pytest.mark.skipif(not INSTALLED, reason="needs the json extra")
def test_a_stream_and_several_answers_follow_it_too(client: openai.OpenAI) -> None:
    many = ask(client, n=2, temperature=1.5, seed=5)
    assert all("floors" in json.loads(choice.message.content) for choice in many.choices)
    pieces = [chunk.choices[0].delta.content or "" for chunk in ask(client, stream=True)]
    assert "floors" in json.loads("".join(pieces))


@pytest.mark.skipif(not INSTALLED, reason="needs the json extra")
def test_a_schema_that_is_none_is_refused_and_the_next_request_answered(
    client: openai.OpenAI,
) -> None:
    with pytest.raises(openai.BadRequestError) as refusal:
        ask(client, {"type": "objec"})
    assert refusal.value.param == "response_format"
    assert ask(client).choices


@pytest.mark.skipif(INSTALLED, reason="the json extra is installed")
def test_without_the_package_the_field_is_refused_by_name(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refusal:
        ask(client)
    assert refusal.value.param == "response_format"
    assert "llguidance" in str(refusal.value)


def test_text_is_what_everybody_gets_anyway(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(
        model=MODEL_NAME,
        messages=[{"role": "user", "content": "Hello"}],
        response_format={"type": "text"},
        max_tokens=2,
    )
    assert reply.choices


def test_a_bias_outside_the_vocabulary_is_the_callers_mistake(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refusal:
        client.completions.create(
            model=MODEL_NAME, prompt="Hello", max_tokens=1, logit_bias={"99999999": 1}
        )
    assert refusal.value.param == "logit_bias"
