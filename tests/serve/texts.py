"""Documents and questions for tests: plain words, long enough to be worth reusing."""

from __future__ import annotations

import random

_THINGS = ("lamp", "ladder", "kettle", "compass", "lantern", "anvil", "bucket", "violin")
_PLACES = ("harbour", "attic", "orchard", "cellar", "library", "chapel", "garden", "market")


def document(seed: int, sentences: int = 24) -> str:
    """About 18 tokens a sentence; no two seeds share a run worth reusing."""
    rng = random.Random(seed)
    return " ".join(
        f"In {rng.choice(_PLACES)} {rng.randrange(10_000)} the {rng.choice(_THINGS)} of "
        f"number {rng.randrange(10_000)} was kept."
        for _ in range(sentences)
    )


def messages(instruction: str, text: str, question: str) -> list[dict[str, str]]:
    return [
        {"role": "system", "content": instruction},
        {"role": "user", "content": f"{text}\n\nQuestion: {question}"},
    ]
