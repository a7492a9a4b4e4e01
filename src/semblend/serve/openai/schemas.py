"""Request bodies: which fields of OpenAI's API are supported, ignored or refused.

A field that OpenAI documents but we cannot honor is refused unless it has the value that
means "off". An unknown field is refused with the closest known name. So no request is
answered as if it had asked for something else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from rapidfuzz import process

from semblend.core.errors import RequestFieldError
from semblend.serve.api_errors import printable
from semblend.serve.openai.chat_messages import Message, Tool

_STRICT = ConfigDict(strict=True, extra="forbid", frozen=True)

Seed = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
StopString = Annotated[str, Field(min_length=1, max_length=256)]

MAX_CHOICES = 16
MAX_PROMPTS = 64

_HARMLESS = frozenset(
    [
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "verbosity",
        "reasoning_effort",
        "moderation",
    ]
)
"""Fields without effect here that any client may send."""

_OFF: Mapping[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "use_beam_search": (False,),
    "prompt_logprobs": (),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "function_call": ("none",),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
}
"""Fields we cannot honor, with the values that request nothing."""


class StreamOptions(BaseModel):
    """What a stream carries besides text."""

    model_config = _STRICT

    include_usage: bool = False
    include_obfuscation: bool = False
    """Accepted for OpenAI's clients; nothing is padded."""


class ReuseOptions(BaseModel):
    """SemBlend's own request options."""

    model_config = _STRICT

    reuse: bool = Field(True, description="False computes the prompt cold.")
    donate: bool = Field(True, description="Whether this prompt may become a donor.")
    policy: str | None = Field(
        None,
        max_length=256,
        pattern=r"^[a-z0-9_=.,()+' -]+$",
        description="A recompute policy, if the server allows requests to choose one.",
    )


class NamedSchema(BaseModel):
    """A named JSON schema."""

    model_config = _STRICT

    name: str | None = Field(None, max_length=64)
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(BaseModel):
    """The required form of the answer: text, a JSON object, or JSON of a schema."""

    model_config = _STRICT

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None

    @model_validator(mode="after")
    def _schema_where_it_belongs(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise RequestFieldError("json_schema", "only and always with type = json_schema")
        return self

    @property
    def schema_text(self) -> str | None:
        """The schema as JSON text; None for free text."""
        if self.type == "text":
            return None
        return json.dumps(
            {"type": "object"} if self.json_schema is None else self.json_schema.schema_
        )


class GenerationBody(BaseModel):
    """The fields both generation endpoints share."""

    model_config = _STRICT

    model: str = Field(min_length=1, max_length=256, description="A name listed by /v1/models.")
    max_tokens: int | None = Field(None, ge=1, le=2**31 - 1)
    temperature: float | None = Field(None, ge=0.0, le=2.0)
    top_p: float | None = Field(None, gt=0.0, le=1.0)
    top_k: int | None = Field(None, ge=-1, le=2**31 - 1, description="0 or -1 keeps all tokens.")
    min_p: float | None = Field(None, ge=0.0, le=1.0)
    presence_penalty: float | None = Field(None, ge=-2.0, le=2.0)
    frequency_penalty: float | None = Field(None, ge=-2.0, le=2.0)
    repetition_penalty: float | None = Field(None, gt=0.0, le=10.0)
    logit_bias: dict[str, float] | None = Field(None, max_length=1024)
    response_format: ResponseFormat | None = None
    n: int = Field(1, ge=1, le=MAX_CHOICES, description="Number of answers per prompt.")
    seed: Seed | None = None
    stop: StopString | list[StopString] | None = None
    stop_token_ids: list[TokenId] | None = Field(None, max_length=64)
    ignore_eos: bool = False
    stream: bool = False
    stream_options: StreamOptions | None = None
    cache_salt: str | None = Field(
        None,
        min_length=1,
        max_length=256,
        pattern=r"^[!-~]+$",
        description="Only requests with the same salt share K/V (vLLM's field of this name).",
    )
    semblend: ReuseOptions | None = None

    @model_validator(mode="before")
    @classmethod
    def _set_aside(cls, data: Any) -> Any:
        """Drop nulls and harmless fields; refuse by name what cannot be honored."""
        if not isinstance(data, dict):
            return data
        kept: dict[str, Any] = {}
        for name, value in data.items():
            if value is None or name in _HARMLESS:
                continue
            if name in cls.model_fields:
                kept[name] = value
            elif name in _OFF:
                _refuse_unless_off(name, value)
            else:
                raise _unknown(name, cls.model_fields)
        return kept

    @field_validator("stop")
    @classmethod
    def _few_stops(cls, stop: str | list[str] | None) -> str | list[str] | None:
        if isinstance(stop, list) and len(stop) > 4:
            raise ValueError(f"expected at most 4 stop strings, got {len(stop)}")
        return stop

    @model_validator(mode="after")
    def _options_need_stream(self) -> GenerationBody:
        if self.stream_options is not None and not self.stream:
            raise RequestFieldError("stream_options", "only meaningful with stream = true")
        return self

    @property
    def biases(self) -> tuple[tuple[int, float], ...]:
        """Biases by token id.

        Raises
        ------
        ValueError
            If a key is not a token id or a bias is out of range.
        """
        found: list[tuple[int, float]] = []
        for key, bias in (self.logit_bias or {}).items():
            if not key.isdecimal() or len(key) > 10:
                raise RequestFieldError("logit_bias", "expected token ids as keys")
            if not -100.0 <= bias <= 100.0:
                raise RequestFieldError("logit_bias", "expected biases from -100 to 100")
            found.append((int(key), bias))
        return tuple(found)

    @property
    def stops(self) -> tuple[str, ...]:
        """Stop strings, one or many."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)


class ChatBody(GenerationBody):
    """`POST /v1/chat/completions`."""

    messages: list[Message] = Field(min_length=1, max_length=4096)
    max_completion_tokens: int | None = Field(None, ge=1, le=2**31 - 1)
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=20)
    tools: list[Tool] | None = Field(None, max_length=512)
    tool_choice: Literal["none", "auto"] | None = Field(
        None, description="none hides the tools from the model; calls cannot be forced."
    )
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, max_length=64, description="Variables for the model's chat template."
    )

    @property
    def offered_tools(self) -> list[Tool]:
        """The tools shown to the model."""
        return [] if self.tool_choice == "none" else list(self.tools or ())

    @model_validator(mode="after")
    def _one_length(self) -> ChatBody:
        both = self.max_tokens is not None and self.max_completion_tokens is not None
        if both and self.max_tokens != self.max_completion_tokens:
            raise RequestFieldError(
                "max_tokens", "differs from max_completion_tokens; send only one"
            )
        if self.top_logprobs is not None and not self.logprobs:
            raise RequestFieldError("top_logprobs", "only meaningful with logprobs = true")
        return self


class CompletionBody(GenerationBody):
    """`POST /v1/completions`: one prompt or several, as text or as token ids."""

    prompt: str | list[str] | list[TokenId] | list[list[TokenId]]
    logprobs: int | None = Field(None, ge=0, le=20)


class TokenizeBody(BaseModel):
    """`POST /tokenize`: a prompt, or messages as a chat would be rendered."""

    model_config = _STRICT

    model: str | None = Field(None, min_length=1, max_length=256)
    prompt: str | None = None
    messages: list[Message] | None = Field(None, min_length=1, max_length=4096)
    tools: list[Tool] | None = Field(None, max_length=512)
    chat_template_kwargs: dict[str, Any] | None = Field(None, max_length=64)
    return_token_strs: bool = False

    @model_validator(mode="after")
    def _one_of_two(self) -> TokenizeBody:
        if (self.prompt is None) == (self.messages is None):
            raise RequestFieldError("prompt", "expected either this or messages")
        return self


class DetokenizeBody(BaseModel):
    """`POST /detokenize`."""

    model_config = _STRICT

    model: str | None = Field(None, min_length=1, max_length=256)
    tokens: list[TokenId]


def _refuse_unless_off(name: str, value: Any) -> None:
    allowed = _OFF[name]
    if any(type(value) is type(off) and value == off for off in allowed):
        return
    if not allowed:
        raise RequestFieldError(name, "not supported by this server; remove it")
    expected = " or ".join(repr(off) for off in allowed)
    raise RequestFieldError(name, f"this server supports only {expected}; remove it otherwise")


def _unknown(name: str, known: Mapping[str, Any]) -> RequestFieldError:
    shown = printable(name[:64])
    match = process.extractOne(shown, list(known), score_cutoff=60)
    hint = f"; did you mean {match[0]}?" if match else ""
    return RequestFieldError(shown, f"unknown field{hint}")
