"""Measure a model's depth drift: the mean of its K and V at many depths, over generated text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from semblend.core.tokens import TokenArray
from semblend.engine.batch import ComputeRun
from semblend.engine.cache.pages import PageTable
from semblend.kv.depth_drift import DepthDrift, read_table
from semblend.quality.items import to_item
from semblend.quality.lab import Lab
from semblend.quality.shards import MeasurementJob
from semblend.quality.texts.workloads import LENGTHS, WORKLOADS

LONG_TEXTS = 8
SHORT_TEXTS = 32
SHORT_TOKENS = 640
"""Near the start, means change quickly and each depth has few tokens, so more texts are read."""

FIRST_SEED = 900_000
"""Seed of texts that no answer measurement uses."""

FITS = 12
"""Iterations after which the two effects no longer change."""

WIDTH_TOKENS = 16
GROWTH = 1.3
"""Depths are grouped into runs of 16 tokens at first, each later run 1.3 times as deep."""


def edges_up_to(tokens: int) -> list[int]:
    """Boundaries of the depth runs."""
    edges = [0]
    while edges[-1] < tokens:
        edges.append(max(edges[-1] + WIDTH_TOKENS, int(edges[-1] * GROWTH)))
    return edges


ReadKv = Callable[[TokenArray], torch.Tensor]
"""The K/V of a text read cold, [layers, parts, tokens, kv_heads, head_dim], K as at position 0."""


def measure_drift(
    lab: Lab, *, length: int = LENGTHS[-1], long: int = LONG_TEXTS, short: int = SHORT_TEXTS
) -> DepthDrift:
    """The table of a lab's model.

    `long` texts have about `length` tokens. Nothing is known about greater depths.
    """
    return drift_of_texts(
        lambda tokens: _read(lab, tokens),
        lab.model.tokenizer,
        length=length,
        long=long,
        short=short,
    )


@torch.no_grad()
def drift_of_texts(
    read: ReadKv,
    tokenizer: Any,
    *,
    length: int,
    long: int = LONG_TEXTS,
    short: int = SHORT_TEXTS,
) -> DepthDrift:
    """Read some texts cold; what K, as at position 0, and V owe to depth and not to the token."""
    edges = torch.tensor(edges_up_to(length))
    if length <= SHORT_TOKENS:
        short = 0
    texts = [
        _text(tokenizer, number, length if number < long else SHORT_TOKENS, length)
        for number in range(long + short)
    ]
    ids = torch.from_numpy(np.unique(np.concatenate(texts)))
    by_depth, by_token = (_Sums(size) for size in (len(edges) - 1, len(ids)))
    met = torch.zeros((len(edges) - 1, len(ids)))
    shape = torch.Size(())
    for tokens in texts:
        kv = read(tokens).float()
        shape, met = kv.shape, met.to(kv.device)
        rows = kv.permute(2, 0, 1, 3, 4).flatten(1)
        depth = torch.bucketize(torch.arange(len(tokens)), edges[1:], right=True).to(kv.device)
        token = torch.searchsorted(ids, torch.from_numpy(tokens)).to(kv.device)
        by_depth.add(depth, rows)
        by_token.add(token, rows)
        met.index_put_((depth, token), torch.ones(len(tokens), device=kv.device), accumulate=True)
    seen = met.sum(1) > 0
    effect = _depth_effect(by_depth.sums[seen], by_token.sums, met[seen])
    means = effect.view(-1, shape[0], shape[1], shape[3], shape[4])
    return DepthDrift(
        depths=((edges[:-1] + edges[1:] - 1).float() / 2)[seen.cpu()],
        means=means.permute(1, 2, 0, 3, 4).cpu().contiguous(),
    )


def _text(tokenizer: Any, number: int, tokens: int, length: int) -> TokenArray:
    case = WORKLOADS["composed"](FIRST_SEED + number, 0, length)
    return to_item(case, tokenizer).tokens[: min(tokens, length)]


def _read(lab: Lab, tokens: TokenArray) -> torch.Tensor:
    """K (as at position 0) and V of a cold prefill, one row per token."""
    with lab.slots(len(tokens)) as pages:
        table = PageTable(pages=pages, page_size=1)
        run = ComputeRun(tokens=tokens, start=0, table=table)
        lab.compute([run])
        kv = lab.pool.read(table, 0, len(tokens)).float()
    positions = torch.arange(len(tokens), device=kv.device)
    kv[:, 0] = lab.model.rotary.rerotate(kv[:, 0], positions, torch.zeros_like(positions))
    return kv


class _Sums:
    """Sums of rows by group."""

    def __init__(self, groups: int) -> None:
        self._groups = groups
        self.sums = torch.zeros((groups, 0))

    def add(self, group: torch.Tensor, rows: torch.Tensor) -> None:
        if not self.sums.numel():
            self.sums = torch.zeros((self._groups, rows.shape[1]), device=rows.device)
        self.sums.index_add_(0, group, rows)


def _depth_effect(
    by_depth: torch.Tensor, by_token: torch.Tensor, met: torch.Tensor
) -> torch.Tensor:
    """Split rows into a token effect and a depth effect, alternating until they settle.

    A plain mean by depth would include which words happen to be there. Near the start that
    outweighs depth itself, and in layer 0, which does not depend on depth, it is all there is.
    """
    depths, tokens = met.sum(1, keepdim=True), met.sum(0)[:, None]
    effect = torch.zeros_like(by_depth)
    for _ in range(FITS):
        token = (by_token - met.T @ effect) / tokens
        effect = (by_depth - met @ token) / depths
        effect -= effect[-1:].clone()
    return effect


def bring_drift(
    lab: Lab, job: MeasurementJob, *, say: Callable[[str], None] = lambda line: None
) -> None:
    """Give the lab the job's table if a policy needs one, and measure it if it does not exist.

    It is written before other processes start, because all of them must use the same table.
    `say` hears of a measurement before it begins.
    """
    if job.drift is None or not job.shifts_depth:
        return
    if not job.drift.exists():
        job.drift.parent.mkdir(parents=True, exist_ok=True)
        length = max(length for cell in job.cells for length in cell.lengths)
        say(f"measuring depth drift up to {length:,} tokens, once per model and number format")
        job.drift.write_bytes(measure_drift(lab, length=length).to_bytes())
    lab.use_drift(read_table(job.drift))
