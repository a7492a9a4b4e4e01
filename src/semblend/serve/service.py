"""Turns a checked body into a job: sampling, namespace and dialect of one request."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from fastapi import Request, Response

from semblend.core.errors import RequestFieldError, SettingsError
from semblend.core.tokens import TokenArray
from semblend.engine.api import GenerationRequest, SamplingParams
from semblend.planning.policies.base import policy_from_spec
from semblend.serve.api_errors import ApiError
from semblend.serve.auth import Caller, checked_name, require_tenant
from semblend.serve.lifecycle import ServerContext
from semblend.serve.openai.dialects import ChatDialect, Dialect, TextDialect
from semblend.serve.openai.generation import AnswerPart, GenerationJob, answer
from semblend.serve.openai.prompts import PromptEncoder
from semblend.serve.openai.replies import Detokenised, Tokens
from semblend.serve.openai.schemas import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    GenerationBody,
    ReuseOptions,
    TokenizeBody,
)

_COMPLETION_TOKENS = 16
"""OpenAI's default length of a completion."""


class Service:
    """Everything the generation routes need, created once per app."""

    def __init__(self, context: ServerContext) -> None:
        limits = (context.engine.max_prompt_tokens, context.options.max_prompt_tokens)
        self.context = context
        self.started_at = time.time()
        self.encoder = PromptEncoder(
            context.engine.tokenizer,
            max_prompt_tokens=min(limit for limit in limits if limit is not None),
        )

    async def chat(self, body: ChatBody, http: Request) -> Response:
        """Answer a chat request."""
        self._check_model(body.model)
        tokens = await self.encoder.chat(
            body.messages, body.offered_tools, body.chat_template_kwargs
        )
        top = (body.top_logprobs or 0) if body.logprobs else None
        asked = body.max_completion_tokens or body.max_tokens
        sampling = self._sampling(body, asked or self.context.options.default_max_tokens, top)

        def dialect(reply_id: str, index: int) -> Dialect:
            return ChatDialect(
                reply_id=reply_id,
                model=body.model,
                tokenizer=self._tokenizer,
                top_logprobs=top,
                index=index,
            )

        return await self._answer(body, http, [tokens], sampling, dialect, "chat")

    async def completion(self, body: CompletionBody, http: Request) -> Response:
        """Answer a completion request."""
        self._check_model(body.model)
        prompts = await self.encoder.completions(body.prompt)
        sampling = self._sampling(body, body.max_tokens or _COMPLETION_TOKENS, body.logprobs)

        def dialect(reply_id: str, index: int) -> Dialect:
            return TextDialect(
                reply_id=reply_id,
                model=body.model,
                tokenizer=self._tokenizer,
                top_logprobs=body.logprobs,
                index=index,
            )

        return await self._answer(body, http, prompts, sampling, dialect, "completion")

    async def tokenize(self, body: TokenizeBody) -> Tokens:
        """The token ids of a prompt or a chat."""
        self._check_model(body.model or self.context.options.model_name)
        if body.messages is not None:
            tools = list(body.tools or ())
            ids = await self.encoder.chat(body.messages, tools, body.chat_template_kwargs)
        else:
            ids = await self.encoder.text(body.prompt or "")
        return Tokens(
            count=len(ids),
            max_model_len=self.encoder.max_prompt_tokens + 1,
            tokens=ids.tolist(),
            token_strs=await self.encoder.pieces(ids) if body.return_token_strs else None,
        )

    async def detokenize(self, body: DetokenizeBody) -> Detokenised:
        """The text of token ids."""
        self._check_model(body.model or self.context.options.model_name)
        return Detokenised(prompt=await self.encoder.decode(body.tokens) if body.tokens else "")

    @property
    def _tokenizer(self) -> Any:
        return self.context.engine.tokenizer

    async def _answer(
        self,
        body: GenerationBody,
        http: Request,
        prompts: Sequence[TokenArray],
        sampling: SamplingParams,
        dialect: Callable[[str, int], Dialect],
        endpoint: str,
    ) -> Response:
        caller: Caller = http.state.caller
        require_tenant(caller)
        template = http.headers.get("x-chat-template-id")
        reuse = body.semblend or ReuseOptions()
        if reuse.policy:
            self._check_policy(reuse.policy)
        # Never the caller's own id: two tenants may choose the same one.
        engine_id = uuid.uuid4().hex
        namespace = self.context.engine.namespace(
            tenant=caller.tenant,
            template=checked_name("x-chat-template-id", template) if template else None,
            cache_salt=body.cache_salt,
            principal=caller.principal,
        )
        parts = [
            AnswerPart(
                request=GenerationRequest(
                    request_id=f"{engine_id}-{index}" if index else engine_id,
                    tokens=tokens,
                    namespace=namespace,
                    sampling=_nth(sampling, index % body.n),
                    reuse=reuse.reuse,
                    donate=reuse.donate,
                    policy=reuse.policy,
                ),
                dialect=dialect(engine_id, index),
                counts_prompt=index % body.n == 0,
            )
            for index, tokens in enumerate(tokens for tokens in prompts for _ in range(body.n))
        ]
        job = GenerationJob(
            parts=tuple(parts),
            caller=caller,
            request_id=http.state.request_id,
            endpoint=endpoint,
            stream=body.stream,
            include_usage=body.stream_options is not None and body.stream_options.include_usage,
        )
        return await answer(self.context, job, http)

    def _check_model(self, name: str) -> None:
        served = self.context.options.model_name
        if name != served:
            raise ApiError(
                404,
                f"model: this server only serves '{served}'",
                param="model",
                code="model_not_found",
            )

    def _check_policy(self, policy: str) -> None:
        if not self.context.options.allow_policy_override:
            raise ApiError(
                403,
                "semblend.policy: this server sets the policy; remove the field, or start it "
                "with --allow-policy-override",
                param="semblend.policy",
                code="policy_override_not_allowed",
            )
        try:
            policy_from_spec(policy)
        except SettingsError as error:
            raise ApiError(
                400,
                f"semblend.policy: {error}",
                param="semblend.policy",
                code="invalid_value",
            ) from error

    def _sampling(
        self, body: GenerationBody, max_tokens: int, top_logprobs: int | None
    ) -> SamplingParams:
        limit = self.context.options.max_output_tokens
        if max_tokens > limit:
            raise ApiError(
                400,
                f"max_tokens: expected at most {limit}, got {max_tokens}",
                param="max_tokens",
                code="invalid_value",
            )
        temperature = body.temperature
        try:
            return SamplingParams(
                max_tokens=max_tokens,
                temperature=(
                    self.context.options.default_temperature if temperature is None else temperature
                ),
                top_p=1.0 if body.top_p is None else body.top_p,
                top_k=max(0, body.top_k or 0),
                min_p=body.min_p or 0.0,
                presence_penalty=body.presence_penalty or 0.0,
                frequency_penalty=body.frequency_penalty or 0.0,
                repetition_penalty=body.repetition_penalty or 1.0,
                logit_bias=body.biases,
                json_schema=(
                    None if body.response_format is None else body.response_format.schema_text
                ),
                seed=body.seed,
                stop=body.stops,
                stop_token_ids=tuple(body.stop_token_ids or ()),
                ignore_eos=body.ignore_eos,
                # The engine returns log probabilities only if alternatives are requested.
                top_logprobs=0 if top_logprobs is None else max(1, top_logprobs),
            )
        except RequestFieldError as error:
            raise ApiError(400, str(error), param=error.field, code="invalid_value") from error


def _nth(sampling: SamplingParams, number: int) -> SamplingParams:
    """The sampling of answer `number` to a prompt, with its own seed if one was given."""
    if not number or sampling.seed is None:
        return sampling
    return replace(sampling, seed=(sampling.seed + number) % 2**63)
