"""A scripted engine, for faults the real one cannot be made to show."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import cache
from typing import Any

from transformers import AutoTokenizer

from semblend.core.namespace import Namespace, salt_part
from semblend.core.outcomes import Outcome
from semblend.engine.api import (
    EngineStats,
    Event,
    FinishedEvent,
    FinishReason,
    GenerationRequest,
    RequestReport,
    StripSegment,
    TokenEvent,
    TokenSource,
)
from tests.serve.support import MODEL


@cache
def _tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(MODEL)


class ScriptedHandle:
    def __init__(self, engine: ScriptedEngine, request: GenerationRequest) -> None:
        self.request = request
        self.cancelled = threading.Event()
        self.prompt_report: RequestReport | None = None
        self._engine = engine

    def cancel(self) -> None:
        self.cancelled.set()

    def events(self) -> Iterator[Event]:
        engine = self._engine
        started = time.perf_counter()
        produced = 0
        reason = FinishReason.LENGTH
        limit = self.request.sampling.max_tokens
        while engine.endless or produced < limit:
            assert engine.goes_on.wait(60), "the test has forgotten the engine"
            if self.cancelled.wait(engine.pace_s):
                reason = FinishReason.CANCELLED
                break
            if engine.break_after is not None and produced >= engine.break_after:
                raise RuntimeError("the scripted engine broke: SECRET-PROMPT")
            if engine.fail_after is not None and produced >= engine.fail_after:
                reason = FinishReason.ERROR
                break
            produced += 1
            yield TokenEvent(token_id=10 + produced, text=f" w{produced}", logprob=-0.5)
        n = len(self.request.tokens)
        elapsed = (time.perf_counter() - started) * 1000.0
        report = RequestReport(
            request_id=self.request.request_id,
            outcome=Outcome.COLD,
            prompt_tokens=n,
            computed_tokens=n,
            strip=(StripSegment(start=0, end=n, source=TokenSource.COMPUTED),),
            ttft_ms=elapsed,
            total_ms=elapsed,
            output_tokens=produced,
        )
        engine.ended.append(self.request.request_id)
        yield FinishedEvent(reason=reason, report=report, error="SECRET-PROMPT")


class ScriptedEngine:
    """Satisfies `ServedEngine`; misbehaves on request."""

    def __init__(self) -> None:
        self.tokenizer: Any = _tokenizer()
        self.max_prompt_tokens = 4096
        self.handles: list[ScriptedHandle] = []
        self.ended: list[str] = []
        self.pace_s = 0.0
        self.endless = False
        self.goes_on = threading.Event()
        """Cleared, it makes no token until it is set again."""
        self.goes_on.set()
        self.break_after: int | None = None
        self.fail_after: int | None = None
        self.submit_error: Exception | None = None
        self.stats_error: Exception | None = None
        self.failure: str | None = None

    def submit(self, request: GenerationRequest) -> ScriptedHandle:
        if self.submit_error is not None:
            raise self.submit_error
        handle = ScriptedHandle(self, request)
        self.handles.append(handle)
        return handle

    def resume_reuse(self) -> int:
        return 0

    def stats(self) -> EngineStats:
        if self.stats_error is not None:
            raise self.stats_error
        return EngineStats(
            running=len(self.handles) - len(self.ended),
            waiting=0,
            pool_pages=64,
            pool_pages_free=60,
            donors=0,
            tier_bytes={"host": 0},
            tier_capacity_bytes={"host": 1024},
            index_bytes=0,
            index_capacity_bytes=1024,
            requests={},
            tokens={},
            reasons={},
            evictions=0,
            registrations=0,
        )

    def namespace(
        self,
        *,
        tenant: str | None = None,
        template: str | None = None,
        cache_salt: str | None = None,
        principal: str | None = None,
    ) -> Namespace:
        return Namespace.of(
            model="scripted",
            tenant=tenant or "none",
            template=template or "none",
            cache_salt=salt_part(cache_salt),
        ).for_principal(principal)
