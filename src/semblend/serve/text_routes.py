"""Routes for text and server information, named as in vLLM's server."""

from __future__ import annotations

from fastapi import APIRouter, FastAPI, Response
from fastapi.responses import HTMLResponse

from semblend import __version__
from semblend.serve.docs_page import docs_page
from semblend.serve.refusals import refusals
from semblend.serve.replies import Detokenised, Tokens, Version
from semblend.serve.schemas import DetokenizeBody, TokenizeBody
from semblend.serve.service import Service

_ASKED = (400, 401, 403, 404, 408, 413, 415, 421, 503)


def text_router(service: Service, app: FastAPI) -> APIRouter:
    """`/tokenize`, `/detokenize`, `/version` and `/docs`."""
    router = APIRouter(tags=["text"])

    @router.post("/tokenize", responses=refusals(*_ASKED))
    async def tokenize(body: TokenizeBody) -> Tokens:
        """The token ids of a prompt, or of a chat as the model's template renders it."""
        return await service.tokenize(body)

    @router.post("/detokenize", responses=refusals(*_ASKED))
    async def detokenize(body: DetokenizeBody) -> Detokenised:
        """The text of token ids."""
        return await service.detokenize(body)

    @router.get("/version", responses=refusals(400, 401, 403, 421))
    async def version() -> Version:
        """The server's version."""
        return Version(version=__version__)

    @router.get("/docs", response_class=HTMLResponse, include_in_schema=False)
    async def docs() -> Response:
        page = docs_page(app.openapi())
        return HTMLResponse(page.body, headers=page.headers)

    return router
