"""From a checked body to a job: sampling, namespace and dialect of one request."""

from __future__ import annotations

import time
import uuid
from typing import Any

from fastapi import Request, Response

from semblend.core.errors import RequestFieldError, SettingsError
from semblend.core.tokens import TokenArray
from semblend.engine.api import GenerationRequest, SamplingParams
from semblend.planning.policies.base import policy_from_spec
from semblend.serve.auth import Caller, checked_name, require_tenant
from semblend.serve.dialects import ChatDialect, Dialect, TextDialect
from semblend.serve.errors import ApiError
from semblend.serve.exchange import Desk
from semblend.serve.generation import Job, answer
from semblend.serve.prompts import PromptEncoder
from semblend.serve.schemas import ChatBody, CompletionBody, GenerationBody, ReuseOptions

_COMPLETION_TOKENS = 16
"""OpenAI's default length of a completion."""


class Service:
    """Everything the generation routes need, made once for an app."""

    def __init__(self, desk: Desk) -> None:
        limits = (desk.engine.max_prompt_tokens, desk.options.max_prompt_tokens)
        self.desk = desk
        self.started_at = time.time()
        self.encoder = PromptEncoder(
            desk.engine.tokenizer,
            max_prompt_tokens=min(limit for limit in limits if limit is not None),
        )

    async def chat(self, body: ChatBody, http: Request) -> Response:
        """Answer a chat request."""
        self._check_model(body.model)
        tokens = await self.encoder.chat(body.messages)
        request_id = uuid.uuid4().hex
        top = (body.top_logprobs or 0) if body.logprobs else None
        asked = body.max_completion_tokens or body.max_tokens
        sampling = self._sampling(body, asked or self.desk.options.default_max_tokens, top)
        dialect = ChatDialect(
            reply_id=request_id, model=body.model, tokenizer=self._tokenizer, top_logprobs=top
        )
        return await self._answer(body, http, request_id, tokens, sampling, dialect, "chat")

    async def completion(self, body: CompletionBody, http: Request) -> Response:
        """Answer a completion request."""
        self._check_model(body.model)
        tokens = await self.encoder.completion(body.prompt)
        request_id = uuid.uuid4().hex
        sampling = self._sampling(body, body.max_tokens or _COMPLETION_TOKENS, body.logprobs)
        dialect = TextDialect(
            reply_id=request_id,
            model=body.model,
            tokenizer=self._tokenizer,
            top_logprobs=body.logprobs,
        )
        return await self._answer(body, http, request_id, tokens, sampling, dialect, "completion")

    @property
    def _tokenizer(self) -> Any:
        return self.desk.engine.tokenizer

    async def _answer(
        self,
        body: GenerationBody,
        http: Request,
        engine_id: str,
        tokens: TokenArray,
        sampling: SamplingParams,
        dialect: Dialect,
        endpoint: str,
    ) -> Response:
        caller: Caller = http.state.caller
        require_tenant(caller)
        template = http.headers.get("x-chat-template-id")
        reuse = body.semblend or ReuseOptions()
        if reuse.policy:
            self._check_policy(reuse.policy)
        request = GenerationRequest(
            # Never the caller's own id: two tenants may choose the same one.
            request_id=engine_id,
            tokens=tokens,
            namespace=self.desk.engine.namespace(
                tenant=caller.tenant,
                template=checked_name("x-chat-template-id", template) if template else None,
                cache_salt=body.cache_salt,
            ),
            sampling=sampling,
            reuse=reuse.reuse,
            donate=reuse.donate,
            policy=reuse.policy,
        )
        job = Job(
            request=request,
            dialect=dialect,
            caller=caller,
            request_id=http.state.request_id,
            endpoint=endpoint,
            stream=body.stream,
            include_usage=body.stream_options is not None and body.stream_options.include_usage,
        )
        return await answer(self.desk, job, http)

    def _check_model(self, name: str) -> None:
        served = self.desk.options.model_name
        if name != served:
            raise ApiError(
                404,
                f"model: this server serves '{served}' only",
                param="model",
                code="model_not_found",
            )

    def _check_policy(self, policy: str) -> None:
        if not self.desk.options.allow_policy_override:
            raise ApiError(
                403,
                "semblend.policy: this server chooses the policy itself; leave it out, or start "
                "it with --allow-policy-override",
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
        limit = self.desk.options.max_output_tokens
        if max_tokens > limit:
            raise ApiError(
                400,
                f"max_tokens: at most {limit} expected, got {max_tokens}",
                param="max_tokens",
                code="invalid_value",
            )
        temperature = body.temperature
        try:
            return SamplingParams(
                max_tokens=max_tokens,
                temperature=(
                    self.desk.options.default_temperature if temperature is None else temperature
                ),
                top_p=1.0 if body.top_p is None else body.top_p,
                top_k=max(0, body.top_k or 0),
                seed=body.seed,
                stop=body.stops,
                stop_token_ids=tuple(body.stop_token_ids or ()),
                ignore_eos=body.ignore_eos,
                # The engine gives log probabilities only where alternatives are asked for.
                top_logprobs=0 if top_logprobs is None else max(1, top_logprobs),
            )
        except RequestFieldError as error:
            raise ApiError(400, str(error), param=error.field, code="invalid_value") from error
