"""The engines that are compared: the same one with SemBlend, and with its prefix cache alone."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Protocol

from semblend.core.settings import EmbedderKind, Settings
from semblend.core.tokens import TokenArray
from semblend.engine.api import GenerationRequest, SamplingParams, TokenEvent
from semblend.engine.engine import EmbeddedEngine
from semblend.engine.model import LoadedModel, load_model
from semblend.engine.options import EngineOptions

POOL_TOKENS = 65_536
"""Ten histories. Chains may have a quarter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One answered turn, timed where the engine runs."""

    tokens: tuple[int, ...]
    computed: int
    """Prompt tokens that were computed."""
    seconds: float
    """To the first token."""
    cpu: float
    """The same in processor seconds of the engine's process, which other load disturbs less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What an arm has spent beside its turns."""

    promoted_tokens: int = 0
    chain_share: float = 0.0
    """Memory of chains, as a share of their cap."""


class Arm(Protocol):
    """One engine. It keeps what it was asked, as an engine that serves does."""

    block_size: int

    def ask(self, prompt: TokenArray, *, tokens: int, full: bool) -> Reply:
        """Answer one prompt."""
        ...

    def settle(self, *, idle: bool) -> None:
        """Store what is to be stored; an `idle` engine also promotes its chains."""
        ...

    def usage(self) -> Usage:
        """What it has spent so far."""
        ...

    def close(self) -> None:
        """Stop the engine."""
        ...


@dataclass(slots=True)
class Embedded:
    """The embedded engine in this process."""

    engine: EmbeddedEngine
    serial: int = 0
    block_size: int = field(init=False)

    def __post_init__(self) -> None:
        self.block_size = self.engine.options.page_size

    def ask(self, prompt: TokenArray, *, tokens: int, full: bool) -> Reply:
        self.serial += 1
        wall, cpu = time.perf_counter(), time.process_time()
        handle = self.engine.submit(
            GenerationRequest(
                request_id=f"r{self.serial}",
                tokens=prompt,
                namespace=self.engine.namespace(),
                sampling=SamplingParams(max_tokens=tokens, ignore_eos=full),
            )
        )
        next(event for event in handle.events() if isinstance(event, TokenEvent))
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        result = handle.result()
        return Reply(
            tokens=result.token_ids, computed=result.report.computed_tokens, seconds=wall, cpu=cpu
        )

    def settle(self, *, idle: bool) -> None:
        self.engine.donors.wait()
        promotion = self.engine.promotion
        while idle and promotion is not None and promotion.waiting:
            self.engine._wake()
            time.sleep(0.005)
        self.engine.donors.wait()

    def usage(self) -> Usage:
        stats = self.engine.stats()
        cap = self.engine.options.chain_share * stats.pool_pages * self.engine.pool.page_bytes
        return Usage(promoted_tokens=stats.promoted_tokens, chain_share=stats.chain_bytes / cap)

    def close(self) -> None:
        self.engine.close()


def embedded_arms(
    folder: str, names: tuple[str, ...], *, pool_tokens: int = POOL_TOKENS
) -> dict[str, Arm]:
    """One engine for each name; the first has SemBlend."""
    model = load_model(folder, device="cpu", dtype="float32")
    return {
        name: _embedded(model, reuses=name == names[0], pool_tokens=pool_tokens) for name in names
    }


def _embedded(model: LoadedModel, *, reuses: bool, pool_tokens: int) -> Embedded:
    return Embedded(
        EmbeddedEngine(
            model,
            options=EngineOptions(pool_bytes=pool_tokens * model.kv_shape.token_bytes),
            settings=Settings(embedder=EmbedderKind.NONE, enabled=reuses, shadow_rate=0.0),
        )
    )
