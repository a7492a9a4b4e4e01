"""A relative learns to say what the reference says, until it finds facts again or time is up."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from benchmarks.relatives.documents import TaughtBatch

SAMPLED_PLACES = 192
"""Places of a document that are compared; all of its answer are."""
WARM_UP = 0.05
"""Share of the time in which the rate rises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lessons:
    """How long and how fast."""

    seconds: float
    rate: float = 2e-4
    most_steps: int | None = None
    look_every: int = 100
    """Steps between two looks at whether facts are found."""
    enough: float = math.inf
    """Share of facts at which it ends early."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """How it went."""

    steps: int
    seconds: float
    first_loss: float
    last_loss: float
    facts: float
    """Share of held-out answers that the relative gives."""


Say = Callable[[str], None]


def distil(
    student: PreTrainedModel,
    teacher: PreTrainedModel,
    batches: Iterator[TaughtBatch],
    lessons: Lessons,
    *,
    held_out: list[TaughtBatch],
    say: Say = print,
) -> Learned:
    """Bring the student's distributions near the teacher's: KL, half of it on answers."""
    weights = [weight for weight in student.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=lessons.rate, weight_decay=0.0, betas=(0.9, 0.95))
    device = student.device
    begun, steps, losses = time.monotonic(), 0, [math.nan]
    student.train()
    while (part := (time.monotonic() - begun) / lessons.seconds) < 1.0:
        if lessons.most_steps is not None and steps >= lessons.most_steps:
            break
        rise = min(1.0, (part + 1e-3) / WARM_UP)
        for group in optimizer.param_groups:
            group["lr"] = lessons.rate * rise * 0.5 * (1.0 + math.cos(math.pi * part))
        loss = _loss(student, teacher, next(batches), device)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        steps += 1
        losses.append(float(loss.detach()))
        if steps % lessons.look_every == 0:
            found = facts_found(student, held_out)
            passed = time.monotonic() - begun
            say(f"step {steps}, {passed:.0f} s: KL {losses[-1]:.3g}, facts {found:.1%}")
            if found >= lessons.enough:
                break
            student.train()
    return Learned(
        steps=steps,
        seconds=round(time.monotonic() - begun, 1),
        first_loss=losses[min(1, steps)],
        last_loss=losses[-1],
        facts=facts_found(student, held_out),
    )


@torch.inference_mode()
def facts_found(model: PreTrainedModel, held_out: list[TaughtBatch]) -> float:
    """Share of answers whose every token is the likeliest, the end included: a greedy answer."""
    model.eval()
    right = total = 0
    for batch in held_out:
        hidden = _hidden(model, batch.tokens.to(model.device))
        for row, (length, answer) in enumerate(zip(batch.lengths, batch.answers, strict=True)):
            said = model.lm_head(hidden[row, length - answer - 1 : length - 1]).argmax(-1).cpu()
            right += int(torch.equal(said, batch.tokens[row, length - answer : length]))
            total += 1
    return right / max(1, total)


def _loss(
    student: PreTrainedModel, teacher: PreTrainedModel, batch: TaughtBatch, device: torch.device
) -> torch.Tensor:
    tokens = batch.tokens.to(device)
    rows, places, shares = _places(batch)
    rows, places, shares = rows.to(device), places.to(device), shares.to(device)
    with torch.inference_mode():
        taught = teacher.lm_head(_hidden(teacher, tokens)[rows, places]).float().log_softmax(-1)
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        said = student.lm_head(_hidden(student, tokens)[rows, places])
    said = said.float().log_softmax(-1)
    taught = taught.clone()  # made in inference mode
    return ((taught.exp() * (taught - said)).sum(-1) * shares).sum()


def _places(batch: TaughtBatch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows, places and weights: half of the weight lies on places that foretell an answer."""
    rows: list[int] = []
    places: list[int] = []
    shares: list[float] = []
    for row, (length, answer) in enumerate(zip(batch.lengths, batch.answers, strict=True)):
        prompt = length - answer - 1
        some = torch.randperm(prompt)[:SAMPLED_PLACES].tolist()
        for among in (some, list(range(prompt, length - 1))):
            rows += [row] * len(among)
            places += among
            shares += [0.5 / len(batch.lengths) / max(1, len(among))] * len(among)
    return torch.tensor(rows), torch.tensor(places), torch.tensor(shares)


def _hidden(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    # Padding stands behind every row's tokens, where causal attention does not look.
    return model.model(input_ids=tokens, use_cache=False).last_hidden_state  # type: ignore[no-any-return]
