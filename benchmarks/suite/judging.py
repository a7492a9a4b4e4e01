"""Two ways to judge an answer without a reference: a judge command, and a local model.

A judge command reads ``{"baseline": …, "semblend": …}`` as JSON on stdin and prints a number. A
local model computes the perplexity of an answer after its prompt.
"""

from __future__ import annotations

import json
import math
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sembench.errors import SemBenchError
from sembench.live.reply import Reply

_JUDGE_SECONDS = 600


class JudgeError(SemBenchError):
    """A judge command failed or printed something other than a number."""


def judge(command: str, *, baseline: str, semblend: str) -> float:
    """The judge command's score for a pair of answers."""
    try:
        done = subprocess.run(
            shlex.split(command),
            input=json.dumps({"baseline": baseline, "semblend": semblend}),
            capture_output=True,
            text=True,
            timeout=_JUDGE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JudgeError(f"--judge-command: {error}") from error
    if done.returncode != 0:
        raise JudgeError(f"--judge-command: exit {done.returncode}: {done.stderr.strip()[:200]}")
    try:
        score = float(done.stdout.split()[-1])
    except (ValueError, IndexError) as error:
        raise JudgeError(
            f"--judge-command: expected a number, got {done.stdout.strip()[:80]!r}"
        ) from error
    if not math.isfinite(score):
        raise JudgeError(f"--judge-command: expected a finite number, got {score}")
    return score


def perplexity(reply: Reply) -> float | None:
    """Perplexity of the generated tokens under the endpoint's own log probabilities.

    At temperature 0 the generated token is the most likely one at its position.
    """
    if not reply.top_logprobs:
        return None
    chosen = [max(position.values()) for position in reply.top_logprobs if position]
    return math.exp(-sum(chosen) / len(chosen)) if chosen else None


class LocalModel:
    """A local causal language model that scores answers."""

    def __init__(self, path: str) -> None:
        try:
            import torch
            from transformers import AutoModelForCausalLM, AutoTokenizer
        except ImportError as error:
            raise JudgeError(
                "--ppl-model needs torch and transformers: pip install '.[engine]'"
            ) from error
        self._torch = torch
        self._tokenizer = AutoTokenizer.from_pretrained(path)
        model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        self._model = model.eval()

    def perplexity(self, prompt: str, answer: str) -> float | None:
        """Perplexity of `answer` after `prompt`; None for an empty answer."""
        head: Sequence[int] = self._tokenizer(prompt, add_special_tokens=False)["input_ids"]
        tail: Sequence[int] = self._tokenizer(answer, add_special_tokens=False)["input_ids"]
        if not tail:
            return None
        limit = getattr(self._model.config, "max_position_embeddings", 0) or len(head) + len(tail)
        ids = [*head, *tail][-limit:]
        tokens = self._torch.tensor([ids])
        with self._torch.no_grad():
            logprobs = self._model(tokens).logits[0, :-1].log_softmax(-1)
        scores = logprobs[range(len(ids) - 1), tokens[0, 1:]][-len(tail) :]
        return math.exp(-float(scores.mean()))


def local_model(path: Path | str | None) -> LocalModel | None:
    """The model at `path`, if one is given."""
    return None if path is None else LocalModel(str(path))
