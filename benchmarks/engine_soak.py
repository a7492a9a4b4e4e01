"""Thousands of mixed requests: pool and tiers stay within their caps, and nothing leaks.

    python benchmarks/engine_soak.py --requests 10000

Uses a tiny random model, so that the engine's bookkeeping dominates: new prompts, exact
prefixes, moved documents, several donors, sampling, stop tokens, cancellation at random moments,
donors that vanish or are damaged while in use, three tiers that each hold a fraction of the
load, policies that probe, shadow samples.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil
import torch
import transformers

from semblend.bench.benchmark_report import BenchmarkReport
from semblend.core.settings import EmbedderKind, Settings
from semblend.core.tokens import TokenArray
from semblend.engine.api import FinishReason, GenerationRequest, SamplingParams, TokenEvent
from semblend.engine.engine import EmbeddedEngine
from semblend.engine.handle import RequestHandle
from semblend.engine.model import LoadedModel, wrap_model
from semblend.engine.options import EngineOptions

VOCABULARY = 512
CONCURRENT = 6
POLICIES = (None, None, "none", "random(0.2)", "all", "span_head(4) + query_attention(0.2, 16)")


def tiny_model() -> LoadedModel:
    """Two layers of random weights."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        eos_token_id=2,
    )
    return wrap_model(transformers.LlamaForCausalLM(config), name="soak")


def make_engine(model: LoadedModel, folder: Path | None = None) -> EmbeddedEngine:
    """An engine whose pool and tiers are far too small for the load.

    With a `folder` it has all three tiers and shadow samples, otherwise only host memory.
    """
    token = model.kv_shape.token_bytes
    return EmbeddedEngine(
        model,
        options=EngineOptions(
            page_size=8,
            pool_bytes=token * 3000,
            device_donor_bytes=token * 1000 if folder else 0,
            host_donor_bytes=token * (2000 if folder else 4000),
            disk_donor_bytes=token * 3000 if folder else 0,
            donor_folder=folder,
            step_tokens=256,
            max_running=CONCURRENT,
        ),
        settings=Settings(
            embedder=EmbedderKind.NONE,
            allow_uncertified=True,
            recompute_policy="span_head(4)",
            max_donor_bytes=2**19,
            shadow_rate=0.05 if folder else 0.0,
        ),
    )


@dataclass
class Soak:
    """Drives an engine and checks its caps after every request."""

    engine: EmbeddedEngine
    seed: int = 0
    finished: dict[str, int] = field(default_factory=dict)
    outcomes: dict[str, int] = field(default_factory=dict)
    cap_violations: int = 0
    errors: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._numbers = np.random.default_rng(self.seed)
        self._documents = [self._text(n) for n in (60, 120, 200, 300, 400, 90)]
        self._past: list[TokenArray] = []
        self._serial = 0

    def run(self, requests: int) -> None:
        """Send `requests` requests, a few at a time."""
        running: list[RequestHandle] = []
        for _ in range(requests):
            running.append(self._send())
            if len(running) >= CONCURRENT:
                self._collect(running.pop(self._random.randrange(len(running))))
            if self._random.random() < 0.01:
                self._sabotage()
            if self._random.random() < 0.05:
                self.engine.resume_reuse()  # reuse in a random model diverges
        for handle in running:
            self._collect(handle)
        self.engine.donors.wait()
        while self.engine.shadow.waiting:  # a sample in progress holds pages
            self.engine._wake()
            time.sleep(0.01)

    def leaked_pages(self) -> int:
        """Pages that nobody should hold now."""
        self.engine.flush_prefix_cache()
        return self.engine.pool.allocator.total - self.engine.pool.allocator.free

    def _send(self) -> RequestHandle:
        self._serial += 1
        roll = self._random
        return self.engine.submit(
            GenerationRequest(
                request_id=f"r{self._serial}",
                tokens=self._prompt(),
                namespace=self.engine.namespace(tenant=roll.choice("ab")),
                sampling=SamplingParams(
                    max_tokens=roll.randint(1, 12),
                    temperature=roll.choice((0.0, 1.0)),
                    top_p=roll.choice((1.0, 0.8)),
                    top_logprobs=roll.choice((0, 2)),
                ),
                reuse=roll.random() < 0.9,
                donate=roll.random() < 0.9,
                policy=roll.choice(POLICIES),
            )
        )

    def _prompt(self) -> TokenArray:
        roll = self._random
        kind = roll.random()
        if kind < 0.15 or not self._past:
            prompt = self._text(roll.randint(1, 500))
        elif kind < 0.35:
            past = roll.choice(self._past)
            prompt = np.concatenate((past[: roll.randint(1, len(past))], self._text(9)))
        else:
            parts = [self._text(roll.randint(1, 40))]
            for document in roll.sample(self._documents, roll.randint(1, 2)):
                parts += [document, self._text(roll.randint(1, 20))]
            prompt = np.concatenate(parts)
        self._past = [*self._past[-20:], prompt]
        return prompt

    def _collect(self, handle: RequestHandle) -> None:
        if self._random.random() < 0.15:
            handle.cancel()
        elif self._random.random() < 0.1:
            for event in handle.events():
                if isinstance(event, TokenEvent):
                    handle.cancel()
        result = handle.result()
        self.errors += result.reason is FinishReason.ERROR
        outcome = result.report.outcome.value
        self.finished[result.reason.value] = self.finished.get(result.reason.value, 0) + 1
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
        stats = self.engine.stats()
        over = [
            name
            for name, used in stats.tier_bytes.items()
            if used > stats.tier_capacity_bytes[name]
        ]
        self.cap_violations += bool(over) or stats.index_bytes > stats.index_capacity_bytes

    def _sabotage(self) -> None:
        """Flip a number in some donor's K/V, or delete it."""
        for tier in self.engine._tiers.memory:
            if tier.name == "device":
                continue  # it has no checksums, because the pool has none
            keys = tier.keys()
            if not keys:
                continue
            key = self._random.choice(keys)
            if self._random.random() < 0.5:
                self.engine._tiers.remove(key)
            elif (lease := tier.acquire(key)) is not None:
                with lease:
                    lease.segment.kv.view(-1)[0] += 1.0

    def _text(self, tokens: int) -> TokenArray:
        return self._numbers.integers(3, VOCABULARY, tokens).astype(np.int32)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        report = run(arguments.requests, seed=arguments.seed, folder=Path(folder))
    report.show(as_json=arguments.json)
    return 1 if report.failed else 0


def run(requests: int, *, seed: int, folder: Path) -> BenchmarkReport:
    """Send the requests; return the figures with their targets."""
    engine = make_engine(tiny_model(), folder)
    soak = Soak(engine, seed=seed)
    report = BenchmarkReport("engine soak", command=" ".join(["python", *sys.argv]))
    case = f"{requests} requests"
    process = psutil.Process()
    soak.run(requests // 5)
    gc.collect()
    before = process.memory_info().rss
    soak.run(requests - requests // 5)
    gc.collect()
    growth = (process.memory_info().rss - before) / before
    report.add(case, "leaked pages", soak.leaked_pages(), "pages", at_most=0)
    report.add(case, "caps exceeded", soak.cap_violations, "times", at_most=0)
    report.add(case, "requests that failed", soak.errors, "requests", at_most=0)
    report.add(case, "resident memory growth after warm-up", growth, "share", at_most=0.05)
    open_requests = engine.pipeline.ledger.totals().open_requests
    report.add(case, "requests left open in the ledger", open_requests, "requests", at_most=0)
    for outcome, count in sorted(soak.outcomes.items()):
        report.add(case, f"outcome {outcome}", count, "requests")
    for reason, count in sorted(soak.finished.items()):
        report.add(case, f"finished by {reason}", count, "requests")
    report.add(case, "shadow samples", engine.stats().shadow_samples, "samples")
    engine.close()
    return report


if __name__ == "__main__":
    raise SystemExit(main())
