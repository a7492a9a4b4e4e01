"""Engines for tests: tiny, deterministic, closed and checked for leaks at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from semblend.core.settings import EmbedderKind, Settings
from semblend.core.tokens import TokenArray
from semblend.engine import EmbeddedEngine, EngineOptions
from semblend.engine.api import GenerationRequest, SamplingParams
from semblend.engine.handle import GenerationResult, RequestHandle
from tests.engine.models import tiny

REUSING = Settings(
    embedder=EmbedderKind.NONE,
    allow_uncertified=True,
    recompute_policy="none",
    namespace_secret="test",
    shadow_rate=0.0,
)
EngineMaker = Callable[..., "Driver"]


class Driver:
    """An engine with shorter words for tests."""

    def __init__(self, engine: EmbeddedEngine) -> None:
        self.engine = engine
        self._serial = 0

    def submit(self, tokens: TokenArray, **options: Any) -> RequestHandle:
        self._serial += 1
        request_id = options.pop("request_id", f"r{self._serial}")
        request = {
            key: options.pop(key)
            for key in ("reuse", "donate", "policy", "namespace")
            if key in options
        }
        request.setdefault("namespace", self.engine.namespace())
        options.setdefault("max_tokens", 4)
        options.setdefault("ignore_eos", True)
        options.setdefault("top_logprobs", 1)
        return self.engine.submit(
            GenerationRequest(
                request_id=request_id,
                tokens=tokens,
                sampling=SamplingParams(**options),
                **request,
            )
        )

    def run(self, tokens: TokenArray, **options: Any) -> GenerationResult:
        result = self.submit(tokens, **options).result()
        self.engine.donors.wait()
        return result

    def cold(self, tokens: TokenArray, **options: Any) -> GenerationResult:
        return self.run(tokens, reuse=False, donate=False, **options)

    def leaked_pages(self) -> int:
        """Pages nobody should hold any more, once shadow samples have been computed."""
        deadline = time.monotonic() + 60
        while self.engine.shadow.waiting and time.monotonic() < deadline:
            time.sleep(0.01)
        self.engine.donors.wait()
        self.engine.flush_prefix_cache()
        return self.engine.pool.allocator.total - self.engine.pool.allocator.free


@pytest.fixture
def make_engine() -> Iterator[EngineMaker]:
    drivers: list[Driver] = []

    def make(
        architecture: str = "llama-gqa", settings: Settings = REUSING, **options: Any
    ) -> Driver:
        options.setdefault("pool_bytes", tiny(architecture)[0].kv_shape.token_bytes * 2048)
        options.setdefault("page_size", 8)
        engine = EmbeddedEngine(
            tiny(architecture)[0], options=EngineOptions(**options), settings=settings
        )
        drivers.append(Driver(engine))
        return drivers[-1]

    yield make
    for driver in drivers:
        leaked = driver.leaked_pages()
        driver.engine.close()
        assert leaked == 0
        assert driver.engine.pipeline.ledger.totals().open_requests == 0


def same(warm: GenerationResult, cold: GenerationResult, tolerance: float = 1e-3) -> bool:
    """Whether two results agree in tokens and, closely, in log-probabilities."""
    return warm.token_ids == cold.token_ids and np.allclose(
        [event.logprob for event in warm.events],
        [event.logprob for event in cold.events],
        atol=tolerance,
    )
