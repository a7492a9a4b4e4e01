"""Distances between answers: token distributions and text."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import torch
from rapidfuzz.distance import LCSseq


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """Next-token distributions compared with cold's, over the forced tokens."""

    kl: float
    """Mean KL(cold || warm) in nats."""
    kl_worst: float
    """The largest at any position."""
    top1: float
    """Share of positions with the same best token."""
    nll: float
    """Mean negative log-likelihood of the forced tokens."""
    cold_nll: float


def divergence(cold: torch.Tensor, warm: torch.Tensor, forced: torch.Tensor) -> Divergence:
    """Compare logits [positions, vocabulary], in float64."""
    left, right = cold.double().log_softmax(-1), warm.double().log_softmax(-1)
    kl = (left.exp() * (left - right)).sum(-1).clamp(min=0.0)
    chosen = forced.to(cold.device).long()[:, None]
    return Divergence(
        kl=float(kl.mean()),
        kl_worst=float(kl.max()),
        top1=float((cold.argmax(-1) == warm.argmax(-1)).double().mean()),
        nll=float(-right.gather(-1, chosen).mean()),
        cold_nll=float(-left.gather(-1, chosen).mean()),
    )


def token_f1(answer: str, reference: str) -> float:
    """Harmonic mean of precision and recall over words, counted with multiplicity."""
    mine, theirs = _words(answer), _words(reference)
    if not mine or not theirs:
        return float(mine == theirs)
    return 2.0 * (Counter(mine) & Counter(theirs)).total() / (len(mine) + len(theirs))


def rouge_l(answer: str, reference: str) -> float:
    """F-measure of the longest common subsequence of words."""
    mine, theirs = _words(answer), _words(reference)
    if not mine or not theirs:
        return float(mine == theirs)
    return 2.0 * LCSseq.similarity(mine, theirs) / (len(mine) + len(theirs))


def _words(text: str) -> list[str]:
    return "".join(c.lower() if c.isalnum() else " " for c in text).split()
