"""OpenAI's routes."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from semblend.serve import replies
from semblend.serve.errors import ApiError
from semblend.serve.schemas import ChatBody, CompletionBody
from semblend.serve.service import Service

_REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": replies.ErrorReply, "description": text}
    for status, text in {
        400: "A field is missing or wrong; `param` names it.",
        401: "An API key is needed.",
        403: "Not allowed here.",
        404: "No such model.",
        408: "The body took too long.",
        413: "The body is too large.",
        415: "JSON is expected.",
        421: "Not addressed to this server.",
        429: "Above this tenant's limits; see Retry-After.",
        500: "The server failed.",
        503: "Full or stopping; see Retry-After.",
        504: "Not finished in time.",
    }.items()
}
_STREAM = {"text/event-stream": {"schema": {"type": "string"}}}


def openai_router(service: Service) -> APIRouter:
    """`/v1/*`."""
    router = APIRouter(prefix="/v1", tags=["openai"])
    options = service.desk.options
    card = replies.ModelCard(
        id=options.model_name,
        created=int(service.started_at),
        max_prompt_tokens=service.encoder.max_prompt_tokens,
    )

    @router.post(
        "/chat/completions",
        response_model=replies.ChatReply,
        responses={**_REFUSALS, 200: {"content": _STREAM}},
    )
    async def chat_completions(body: ChatBody, request: Request) -> Response:
        """Answer a chat; with `stream`, as server-sent events."""
        return await service.chat(body, request)

    @router.post(
        "/completions",
        response_model=replies.TextReply,
        responses={**_REFUSALS, 200: {"content": _STREAM}},
    )
    async def completions(body: CompletionBody, request: Request) -> Response:
        """Continue a prompt; with `stream`, as server-sent events."""
        return await service.completion(body, request)

    @router.get("/models", responses={401: _REFUSALS[401], 421: _REFUSALS[421]})
    async def models() -> replies.ModelList:
        """The one model served."""
        return replies.ModelList(data=[card])

    @router.get("/models/{model:path}", responses={s: _REFUSALS[s] for s in (400, 401, 404, 421)})
    async def model(model: str) -> replies.ModelCard:
        """One model by name."""
        if model != card.id:
            raise ApiError(
                404,
                f"model: this server serves '{card.id}' only",
                param="model",
                code="model_not_found",
            )
        return card

    return router
