"""The mock engine over HTTP: OpenAI's routes, SGLang's routes, flushing, metrics, faults."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

from sembench.mock_engine import openai_protocol, sglang_protocol
from sembench.mock_engine.answers import pieces
from sembench.mock_engine.counters import Counters
from sembench.mock_engine.engine import AdmittedRequest, MockEngine
from sembench.mock_engine.journal import Journal
from sembench.mock_engine.protocol import CompletionRequest, Protocol, Token, fake_top_logprobs
from sembench.mock_engine.settings import Cheat, MockFault, MockSettings


class MockServer:
    """State shared by the routes. With one event loop, requests are admitted one at a time."""

    def __init__(self, settings: MockSettings) -> None:
        self.settings = settings
        self.engine = MockEngine(settings)
        self.counters = Counters()
        self.journal = Journal(
            log_path=settings.log_path,
            log_format=settings.log_format,
            audit_path=settings.audit_path,
            block_size=settings.block_size,
        )
        self._numbers = itertools.count(1)

    @property
    def silent(self) -> bool:
        """Whether to withhold everything that could be checked."""
        return self.settings.cheat is Cheat.MISSING_METRICS

    async def complete(self, request: Request, protocol: Protocol) -> Response:
        """Answer one completion in the given protocol."""
        number = next(self._numbers)
        started = self.settings.clock.now()
        try:
            completion = protocol.read(await request.json())
        except ValueError as error:
            return JSONResponse({"error": {"message": str(error), "type": "invalid_request"}}, 400)
        fault = self._fault(number)
        if fault is MockFault.ERROR:
            self.counters.failures += 1
            return JSONResponse({"error": {"message": "injected fault", "type": "server"}}, 500)
        request_id = (
            request.headers.get("x-request-id") or completion.request_id or f"mock-{number}"
        )
        namespace = "|".join(
            (self.settings.model, request.headers.get("x-tenant-id", ""), completion.cache_salt)
        )
        admitted = self.engine.admit(request_id, completion.prompt, namespace)
        self.counters.record(admitted)
        self.journal.record(admitted)
        answer = AnswerStream(
            server=self, completion=completion, admitted=admitted, started=started, fault=fault
        )
        headers = self._headers(admitted)
        if completion.stream:
            return StreamingResponse(
                answer.events(protocol), media_type="text/event-stream", headers=headers
            )
        return JSONResponse(await answer.whole(protocol), headers=headers)

    def _fault(self, number: int) -> MockFault:
        every = self.settings.fault_every
        return self.settings.fault if every and number % every == 0 else MockFault.NONE

    def _headers(self, admitted: AdmittedRequest) -> dict[str, str]:
        headers = {"x-request-id": admitted.request_id}
        if not self.silent:
            headers["x-worker-id"] = "mock-0"
            if self.settings.router:
                placed = admitted.said.outcome in ("materialised", "discovery_only")
                headers["x-semantic-route"] = (
                    "semantic_placement" if placed else admitted.said.outcome
                )
        return headers


class AnswerStream:
    """One answer: first the simulated prefill, then one token at a time."""

    def __init__(
        self,
        *,
        server: MockServer,
        completion: CompletionRequest,
        admitted: AdmittedRequest,
        started: float,
        fault: MockFault,
    ) -> None:
        self._server = server
        self._completion = completion
        self._admitted = admitted
        self._started = started
        self._fault = fault

    async def events(self, protocol: Protocol) -> AsyncIterator[str]:
        """The stream, cut short if a fault demands it."""
        if self._fault is MockFault.STALL:
            await asyncio.sleep(self._server.settings.stall_seconds)
            return
        yield protocol.opening(self._completion, self._admitted)
        tokens: list[Token] = []
        async for token in self._tokens():
            tokens.append(token)
            yield protocol.token(self._completion, self._admitted, tokens)
            if self._fault is MockFault.GARBAGE:
                yield "data: {not json\n\n"
            if self._fault is MockFault.DISCONNECT:
                # Raising makes the server close the connection without a last chunk.
                raise ConnectionResetError("injected fault: disconnect")
        yield protocol.closing(
            self._completion, self._admitted, tokens, self._times(), self._silent
        )

    async def whole(self, protocol: Protocol) -> Mapping[str, Any]:
        if self._fault is MockFault.STALL:
            await asyncio.sleep(self._server.settings.stall_seconds)
        tokens = [token async for token in self._tokens()]
        return protocol.whole(self._completion, self._admitted, tokens, self._times(), self._silent)

    @property
    def _silent(self) -> bool:
        return self._server.silent

    def _times(self) -> dict[str, float]:
        return {
            "prefill_ms": self._admitted.prefill_ms,
            "total_ms": (self._server.settings.clock.now() - self._started) * 1000.0,
        }

    async def _work(self, milliseconds: float) -> None:
        if milliseconds > 0:
            await self._server.settings.clock.sleep(milliseconds / 1000.0)

    async def _tokens(self) -> AsyncIterator[Token]:
        await self._work(self._admitted.prefill_ms)
        for position, text in enumerate(pieces(self._admitted.answer, self._completion.max_tokens)):
            if position:
                await self._work(self._server.settings.decode_ms_per_token)
            self._server.counters.generation_tokens += 1
            yield Token(
                text=text, top_logprobs=fake_top_logprobs(text, self._completion.top_logprobs)
            )


def create_app(settings: MockSettings) -> FastAPI:
    """Create the application of one mock engine."""
    server = MockServer(settings)
    app = FastAPI(title="SemBench mock engine", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.server = server

    async def chat(request: Request) -> Response:
        return await server.complete(request, openai_protocol.Chat(settings.model))

    async def completions(request: Request) -> Response:
        return await server.complete(request, openai_protocol.Completions(settings.model))

    async def generate(request: Request) -> Response:
        return await server.complete(request, sglang_protocol.Generate(settings.model))

    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [{"id": settings.model, "object": "model"}]}

    async def flush() -> Response:
        server.engine.flush()
        return PlainTextResponse("Cache flushed.\n")

    async def metrics() -> Response:
        if server.silent:
            return PlainTextResponse("not found\n", 404)
        return PlainTextResponse(server.counters.page(settings.model), media_type="text/plain")

    async def health() -> dict[str, str]:
        return {"status": "ok"}

    async def model_info() -> dict[str, Any]:
        return {"model_path": settings.model, "is_generation": True}

    async def server_info() -> dict[str, Any]:
        return {
            "version": "mock",
            "model_path": settings.model,
            "page_size": settings.block_size,
            "disable_radix_cache": not settings.prefix_cache,
        }

    app.add_api_route("/v1/chat/completions", chat, methods=["POST"], response_model=None)
    app.add_api_route("/v1/completions", completions, methods=["POST"], response_model=None)
    app.add_api_route("/generate", generate, methods=["POST"], response_model=None)
    app.add_api_route("/v1/models", models, methods=["GET"])
    app.add_api_route("/flush_cache", flush, methods=["GET", "POST"], response_model=None)
    app.add_api_route("/reset_prefix_cache", flush, methods=["POST"], response_model=None)
    app.add_api_route("/metrics", metrics, methods=["GET"], response_model=None)
    app.add_api_route("/health", health, methods=["GET"])
    app.add_api_route("/get_model_info", model_info, methods=["GET"])
    app.add_api_route("/get_server_info", server_info, methods=["GET"])
    return app
