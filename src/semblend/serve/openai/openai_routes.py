"""OpenAI's routes."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from semblend.serve.api_errors import ApiError
from semblend.serve.error_responses import error_responses
from semblend.serve.openai import replies
from semblend.serve.openai.schemas import ChatBody, CompletionBody
from semblend.serve.service import Service

# Before OpenAPI 3.2 a stream's schema is the schema of each event.
_STREAM = {
    "text/event-stream": {
        "schema": {
            "type": "object",
            "required": ["data"],
            "properties": {
                "data": {"type": "string", "description": "A chunk as JSON; the last is [DONE]."}
            },
        }
    }
}


def openai_router(service: Service) -> APIRouter:
    """`/v1/*`."""
    router = APIRouter(prefix="/v1", tags=["openai"])
    options = service.context.options
    card = replies.ModelCard(
        id=options.model_name,
        created=int(service.started_at),
        max_prompt_tokens=service.encoder.max_prompt_tokens,
    )

    @router.post(
        "/chat/completions",
        response_model=replies.ChatReply,
        responses={**error_responses(), 200: {"content": _STREAM}},
    )
    async def chat_completions(body: ChatBody, request: Request) -> Response:
        """Answer a chat; with `stream`, as server-sent events."""
        return await service.chat(body, request)

    @router.post(
        "/completions",
        response_model=replies.TextReply,
        responses={**error_responses(), 200: {"content": _STREAM}},
    )
    async def completions(body: CompletionBody, request: Request) -> Response:
        """Continue a prompt; with `stream`, as server-sent events."""
        return await service.completion(body, request)

    @router.get("/models", responses=error_responses(400, 401, 403, 421))
    async def models() -> replies.ModelList:
        """The served model."""
        return replies.ModelList(data=[card])

    @router.get("/models/{model:path}", responses=error_responses(400, 401, 403, 404, 421))
    async def model(model: str) -> replies.ModelCard:
        """One model by name."""
        if model != card.id:
            raise ApiError(
                404,
                f"model: this server only serves '{card.id}'",
                param="model",
                code="model_not_found",
            )
        return card

    return router
