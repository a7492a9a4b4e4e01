"""Response bodies in OpenAI's format, plus SemBlend's own report."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field


class PromptTokensDetails(BaseModel):
    """Where prompt tokens came from, in OpenAI's terms."""

    cached_tokens: int = Field(description="Tokens served from the engine's exact prefix cache.")


class Usage(BaseModel):
    """Token counts of one request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class Times(BaseModel):
    """Milliseconds, measured by the engine."""

    queue_ms: float
    lookup_ms: float
    prefill_ms: float
    ttft_ms: float
    total_ms: float


class ReuseReport(BaseModel):
    """What really happened to the prompt. Counts are confirmed by the engine."""

    outcome: str
    prompt_tokens: int
    exact_tokens: int = Field(description="From the exact prefix cache.")
    continued_tokens: int = Field(
        description="Approximate K/V that this conversation was generated with."
    )
    reused_tokens: int = Field(description="Copied from donors (approximate).")
    hole_tokens: int = Field(description="Computed between reused spans.")
    recomputed_tokens: int = Field(description="Computed inside spans, for quality.")
    computed_tokens: int = Field(description="All computed tokens, including holes and recomputes.")
    approximate: bool = Field(description="Whether any K/V differs from that of a cold prefill.")
    donors: int
    donor_ids: list[str] = Field(description="Opaque names, meaningful to this tenant only.")
    similarity: float | None
    policy: str
    certified: bool
    reason: str | None = Field(description="Why tokens were computed rather than reused.")
    times: Times


class ErrorDetail(BaseModel):
    """One refusal."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorReply(BaseModel):
    """Every refusal has this shape."""

    error: ErrorDetail


class AlternativeLogprob(BaseModel):
    """One alternative token."""

    token: str
    logprob: float
    bytes: list[int] | None


class ChatLogprob(AlternativeLogprob):
    """The chosen token."""

    top_logprobs: list[AlternativeLogprob]


class ChatLogprobs(BaseModel):
    """Log probabilities of a chat answer."""

    content: list[ChatLogprob]


class ChatReplyMessage(BaseModel):
    """The assistant's turn."""

    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatChoice(BaseModel):
    """One choice of a chat reply."""

    index: int = 0
    message: ChatReplyMessage
    logprobs: ChatLogprobs | None
    finish_reason: str
    semblend: ReuseReport | None = Field(None, description="Set if there are several choices.")


class ChatReply(BaseModel):
    """The answer of `/v1/chat/completions`."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    semblend: ReuseReport


class TextLogprobs(BaseModel):
    """Log probabilities of a completion, in parallel lists."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class TextChoice(BaseModel):
    """One choice of a completion."""

    index: int = 0
    text: str
    logprobs: TextLogprobs | None
    finish_reason: str
    semblend: ReuseReport | None = Field(None, description="Set if there are several choices.")


class TextReply(BaseModel):
    """The answer of `/v1/completions`."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage
    semblend: ReuseReport


class Tokens(BaseModel):
    """The answer of `/tokenize`."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Detokenised(BaseModel):
    """The answer of `/detokenize`."""

    prompt: str


class Version(BaseModel):
    """The answer of `/version`."""

    version: str
    server: Literal["semblend"] = "semblend"


class ModelCard(BaseModel):
    """One served model."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "semblend"
    max_prompt_tokens: int


class ModelList(BaseModel):
    """The answer of `/v1/models`."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


class Health(BaseModel):
    """Whether the process is alive and accepts requests."""

    status: Literal["ok", "draining", "failing"]
    live: bool
    ready: bool
    reason: str | None = Field(None, description="Why it does not accept requests.")
