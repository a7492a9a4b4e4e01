"""The benchmarked model: Qwen2.5-7B's shape, with random bf16 weights made on the card."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from benchmarks.gpu.machine import Ceilings

from semblend.core.plan import Hole, Plan, Span
from semblend.core.tokens import TokenArray
from semblend.engine.batch import ComputeRun
from semblend.engine.cache.pages import PageTable
from semblend.engine.cache.pool import PagedPool
from semblend.engine.model import LoadedModel, wrap_model
from semblend.kv.donor_pieces import DonorKv, DonorPiece
from semblend.planning.recompute import plan_runs

SHAPE: dict[str, Any] = {
    "vocab_size": 152064,
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "max_position_embeddings": 40960,
    "rope_theta": 1e6,
    "tie_word_embeddings": False,
}
TAIL_TOKENS = 64
RUN_TOKENS = 64
"""Tokens per recompute run."""
SEGMENT_TOKENS = 512
"""Tokens per donor segment in an engine."""


def make_model(**changes: Any) -> tuple[Any, LoadedModel]:
    """The plain transformers model, and the same weights ready for the engine."""
    import transformers

    config = transformers.Qwen2Config(**{**SHAPE, **changes})
    with torch.device("cuda"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.eval()
    loaded = wrap_model(model, name="random-7b", fingerprint="random")
    return model, loaded


def make_pool(model: LoadedModel, tokens: int, page_size: int = 16) -> PagedPool:
    """A pool with room for this many tokens."""
    return PagedPool(
        model.kv_shape,
        capacity_bytes=model.kv_shape.token_bytes * (tokens + page_size),
        page_size=page_size,
        device=model.device,
    )


def make_table(pool: PagedPool, tokens: int) -> PageTable:
    """Contiguous pages."""
    pages = pool.allocator.allocate(pool.pages_for(tokens))
    return PageTable(pages=pages, page_size=pool.page_size)


def cold_run(tokens: TokenArray, table: PageTable) -> list[ComputeRun]:
    """A whole prompt as one hole."""
    return [ComputeRun(tokens=tokens, start=0, table=table, logit_rows=1)]


@dataclass(frozen=True, slots=True, eq=False)
class OneDonor:
    """A donor source that holds one donor in segments."""

    donor: DonorKv

    @contextmanager
    def lease(self, donor_id: str, start: int, end: int) -> Iterator[DonorKv]:
        """The donor, which nobody evicts."""
        yield self.donor


def random_donor(model: LoadedModel, tokens: TokenArray, *, on_host: bool) -> OneDonor:
    """K/V of random numbers in segments, on the card or in pinned host memory."""
    shape, pieces = model.kv_shape, []
    for start in range(0, len(tokens), SEGMENT_TOKENS):
        size = min(SEGMENT_TOKENS, len(tokens) - start)
        kv = torch.randn(
            (shape.layers, 2, size, shape.kv_heads, shape.head_dim),
            dtype=shape.dtype,
            device=model.device,
        )
        pieces.append(DonorPiece(start=start, kv=kv.cpu().pin_memory() if on_host else kv))
    return OneDonor(DonorKv(tokens=tokens, pieces=tuple(pieces)))


def hit_plan(
    prompt: int, spans: int, share: float, rng: np.random.Generator
) -> tuple[Plan, TokenArray, TokenArray]:
    """A prompt of moved spans and a tail; `share` of it is still computed, in runs all over.

    Returns the plan, the prompt's tokens and the donor's.
    """
    size = prompt - TAIL_TOKENS
    donor = rng.integers(3, 150000, size).astype(np.int32)
    cuts = np.linspace(0, size, spans + 1).astype(int).tolist()
    order = rng.permutation(spans).tolist() if spans > 1 else [0]
    shift = 0 if spans > 1 else 16
    placed, at = [], shift
    for number in order:
        low, high = cuts[number], cuts[number + 1]
        high = min(high, low + size - at)
        placed.append(Span(donor_id="d", donor_start=low, target_start=at, length=high - low))
        at += high - low
    tokens = rng.integers(3, 150000, prompt).astype(np.int32)
    for span in placed:
        tokens[span.target_start : span.target_end] = donor[span.donor_start : span.donor_end]
    runs = round(share * prompt / RUN_TOKENS)
    starts = (
        np.linspace(0, size - RUN_TOKENS, runs).astype(int) if runs else np.array([])
    ).tolist()
    plan = Plan(
        namespace="bench",
        prompt_tokens=prompt,
        spans=tuple(placed),
        recompute=tuple(Hole(start, start + RUN_TOKENS) for start in starts),
        end=at,
    )
    return plan, tokens, donor


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The minimum operations and bytes of a prefill."""

    flops: float
    copied_bytes: float
    """K/V put in place, counted once."""
    context_bytes: float
    """K/V of the whole prompt."""
    weight_bytes: float

    def floor_s(self, ceilings: Ceilings, *, on_host: bool) -> float:
        """The least time: computing, or reading the weights, plus moving K/V.

        From device memory K/V is read, written and attended to. From the host it crosses the
        bus while earlier layers are computed.
        """
        compute = max(self.weight_bytes / ceilings.copy, self.flops / ceilings.matrix)
        if on_host:
            return max(self.copied_bytes / ceilings.to_device, compute)
        moved = 2 * self.copied_bytes + self.context_bytes if self.copied_bytes else 0.0
        return compute + moved / ceilings.copy


def work_of(model: LoadedModel, prompt: int, runs: tuple[Hole, ...], copied: int) -> Work:
    """The work of computing `runs` of a prompt, with `copied` tokens put in place."""
    config = model.model.config
    layers, heads = config.num_hidden_layers, config.num_attention_heads
    head_dim = model.kv_shape.head_dim
    linear = sum(
        parameter.numel()
        for name, parameter in model.model.named_parameters()
        if name.endswith("proj.weight")
    )
    positions = np.concatenate([np.arange(run.start, run.end) for run in runs])
    attention = 4.0 * heads * head_dim * layers * float((positions + 1).sum())
    head = 2.0 * config.vocab_size * config.hidden_size
    return Work(
        flops=2.0 * linear * positions.size + attention + head,
        copied_bytes=float(copied * model.kv_shape.token_bytes),
        context_bytes=float(prompt * model.kv_shape.token_bytes),
        weight_bytes=2.0 * linear,
    )


def plan_work(model: LoadedModel, plan: Plan) -> Work:
    """The work of carrying out a plan."""
    return work_of(model, plan.prompt_tokens, plan_runs(plan), plan.reused_tokens)
