"""Routes for text and server information, named as in vLLM's server."""

from __future__ import annotations

from fastapi import APIRouter, FastAPI, Response
from fastapi.responses import HTMLResponse

from semblend import __version__
from semblend.serve.error_responses import error_responses
from semblend.serve.openai.replies import Detokenised, Tokens, Version
from semblend.serve.openai.schemas import DetokenizeBody, TokenizeBody
from semblend.serve.service import Service
from semblend.serve.watch.docs_page import docs_page

_ASKED = (400, 401, 403, 404, 408, 413, 415, 421, 503)


def text_router(service: Service, app: FastAPI) -> APIRouter:
    """`/tokenize`, `/detokenize`, `/version` and `/docs`."""
    router = APIRouter(tags=["text"])

    @router.post("/tokenize", responses=error_responses(*_ASKED))
    async def tokenize(body: TokenizeBody) -> Tokens:
        """The token ids of a prompt, or of a chat as the model's template renders it."""
        return await service.tokenize(body)

    @router.post("/detokenize", responses=error_responses(*_ASKED))
    async def detokenize(body: DetokenizeBody) -> Detokenised:
        """The text of token ids."""
        return await service.detokenize(body)

    @router.get("/version", responses=error_responses(400, 401, 403, 421))
    async def version() -> Version:
        """The server's version."""
        return Version(version=__version__)

    @router.get("/docs", response_class=HTMLResponse, include_in_schema=False)
    async def docs() -> Response:
        page = docs_page(app.openapi())
        return HTMLResponse(page.body, headers=page.headers)

    return router
