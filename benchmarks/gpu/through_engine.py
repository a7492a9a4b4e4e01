"""Hits as a caller sees them: from submission to the first token, with donors in tiers.

The other hits start at a plan and read a donor without lookup, lease or check. Here the engine's
own thread looks up, plans, admits and loads a prompt, with checksums.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from benchmarks.gpu.machine import Figure, at_least, at_most, info

from semblend.core.outcomes import Outcome
from semblend.core.settings import EmbedderKind, Settings
from semblend.core.tokens import TokenArray
from semblend.engine import EmbeddedEngine, EngineOptions
from semblend.engine.api import GenerationRequest, RequestReport, SamplingParams
from semblend.engine.model import LoadedModel

INSTRUCTION, QUESTION, MOVED = 200, 64, 16
"""Tokens of a new instruction and question, and how far the document moves for them."""
POLICIES = ("none", "random(0.05)", "random(0.15)")
LOOKING = "budget(span_head(8) + query_attention(0.05, 16, 'displaced'), 0.05)"
"""A policy that looks at the question first: two passes, and no layer-by-layer loading."""
WARM, REPEATS = 3, 7


def through_engine(
    model: LoadedModel, lengths: tuple[int, ...] = (8192, 32768), vocabulary: int = 150000
) -> list[Figure]:
    """Time to first token of hits from either tier, next to cold prompts of the same engine."""
    seconds: dict[tuple[int, str, str], float] = {}
    for tier in ("device", "host"):
        with _engine(model, tier, 2 * max(lengths)) as engine:
            client = _Client(engine, vocabulary)
            for size in lengths:
                document = client.text(size - INSTRUCTION - QUESTION)
                cold = [client.ask(document, reuse=False).ttft_ms for _ in range(WARM + 3)]
                seconds[size, tier, "cold"] = float(np.median(cold[WARM:])) / 1e3
                client.donate(document)
                for policy in (*POLICIES, LOOKING):
                    reports = [client.ask(document, policy=policy) for _ in range(WARM + REPEATS)]
                    _check_reused(reports, len(document))
                    times = [report.ttft_ms for report in reports[WARM:]]
                    seconds[size, tier, policy] = float(np.median(times)) / 1e3
    return [
        figure
        for size in lengths
        for policy in (*POLICIES, LOOKING)
        for figure in _figures(size, policy, seconds)
    ]


def _figures(
    size: int, policy: str, seconds: dict[tuple[int, str, str], float]
) -> Iterator[Figure]:
    for tier in ("device", "host"):
        case = f"engine {size} {policy} {tier}"
        taken, cold = seconds[size, tier, policy], seconds[size, tier, "cold"]
        yield info(case, "ttft", taken * 1e3, "ms")
        yield info(case, "cold", cold * 1e3, "ms")
        limit = {"random(0.05)": 9.0, "random(0.15)": 5.0}.get(policy) if size == 32768 else None
        if limit is None or tier == "host":
            yield info(case, "speedup", cold / taken, "x")
        else:
            yield at_least(case, "speedup", cold / taken, limit, "x")
    over = seconds[size, "host", policy] / seconds[size, "device", policy]
    if policy.startswith("random"):
        yield at_most(case, "of_device", over, 1.3)
    else:
        yield info(case, "of_device", over, "ratio")


def _check_reused(reports: list[RequestReport], document: int) -> None:
    for report in reports:
        covered = report.reused_tokens + report.recomputed_tokens
        if report.outcome is not Outcome.MATERIALISED or covered < 0.95 * document:
            raise RuntimeError(f"not a hit: {report}")


class _Client:
    """Asks about one document at a time, always with new words."""

    def __init__(self, engine: EmbeddedEngine, vocabulary: int) -> None:
        self._engine = engine
        self._rng = np.random.default_rng(0)
        self._vocabulary = vocabulary
        self._serial = itertools.count()

    def text(self, size: int) -> TokenArray:
        """Random token ids."""
        return self._rng.integers(3, self._vocabulary, size).astype(np.int32)

    def donate(self, document: TokenArray) -> None:
        """Store the document as a donor, at another position than it is asked about."""
        self._run(np.concatenate([self.text(INSTRUCTION - MOVED), document]), donate=True)
        self._engine.donors.wait()

    def ask(
        self, document: TokenArray, *, reuse: bool = True, policy: str | None = None
    ) -> RequestReport:
        """Ask one question about the document; nothing of it is kept."""
        prompt = np.concatenate([self.text(INSTRUCTION), document, self.text(QUESTION)])
        return self._run(prompt, reuse=reuse, donate=False, policy=policy)

    def _run(
        self,
        tokens: TokenArray,
        *,
        donate: bool,
        reuse: bool = True,
        policy: str | None = None,
    ) -> RequestReport:
        request = GenerationRequest(
            request_id=f"bench-{next(self._serial)}",
            tokens=tokens,
            namespace=self._engine.namespace(),
            sampling=SamplingParams(max_tokens=1, ignore_eos=True),
            reuse=reuse,
            donate=donate,
            policy=policy,
        )
        return self._engine.submit(request).result().report


@contextmanager
def _engine(model: LoadedModel, tier: str, tokens: int) -> Iterator[EmbeddedEngine]:
    """An engine whose donors live in one tier, with room for `tokens` tokens in each place."""
    room = tokens * model.kv_shape.token_bytes
    options = EngineOptions(
        pool_bytes=room,
        device_donor_bytes=room if tier == "device" else 0,
        host_donor_bytes=room,
        step_tokens=tokens,
        prefix_cache=False,
    )
    settings = Settings(
        embedder=EmbedderKind.NONE,
        allow_uncertified=True,
        recompute_policy="none",
        namespace_secret="benchmark",
        shadow_rate=0.0,
    )
    engine = EmbeddedEngine(model, options=options, settings=settings)
    try:
        yield engine
    finally:
        engine.close()
