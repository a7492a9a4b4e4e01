"""What relatives read while they learn: the generator's documents, with their right answers."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import torch

from semblend.quality.items import to_item
from semblend.quality.texts.workloads import WORKLOADS

TAUGHT = (
    "instruction",
    "composed",
    "reordered",
    "edited_renamed",
    "edited_exchanged",
    "multi_turn",
)
FIRST_SEED = 700_000
"""Certificates are measured on documents of other seeds."""
HELD_OUT_SEED = 699_999
PADDING = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TaughtBatch:
    """Prompts with answers behind them, padded at their ends."""

    tokens: torch.Tensor
    """int64 [rows, length]."""
    lengths: tuple[int, ...]
    answers: tuple[int, ...]
    """Tokens of each row's answer, the end included: its last ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Writing:
    """Which documents are written."""

    model: Path
    """For its tokenizer."""
    rows: int
    tokens: int
    """Of a prompt, about."""


def written(job: Writing, seed: int) -> TaughtBatch:
    """One batch: every row another document, workloads in turn."""
    tokenizer = _tokenizer(str(job.model))
    rows: list[list[int]] = []
    answers: list[int] = []
    for number in range(job.rows):
        make = WORKLOADS[TAUGHT[(seed + number) % len(TAUGHT)]]
        item = to_item(make(seed, number, job.tokens), tokenizer)
        rows.append([*item.tokens.tolist(), *item.answer_ids.tolist()])
        answers.append(len(item.answer_ids))
    longest = max(map(len, rows))
    padded = [[*row, *[PADDING] * (longest - len(row))] for row in rows]
    return TaughtBatch(
        tokens=torch.tensor(padded), lengths=tuple(map(len, rows)), answers=tuple(answers)
    )


def batches(jobs: Sequence[Writing], *, writers: int) -> Iterator[TaughtBatch]:
    """Batches without end, the jobs in turn; written beside the training, or here (0 writers)."""
    asked = ((jobs[at % len(jobs)], FIRST_SEED + at) for at in count())
    if not writers:
        for job, seed in asked:
            yield written(job, seed)
        return
    context = multiprocessing.get_context("spawn")
    with context.Pool(writers) as pool:
        ahead = [pool.apply_async(written, next(asked)) for _ in range(4 * writers)]
        while True:
            yield ahead.pop(0).get()
            ahead.append(pool.apply_async(written, next(asked)))


@cache
def _tokenizer(model: str) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model)
