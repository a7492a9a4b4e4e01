"""Prompts that tests share: documents read before, and what brings them back."""

from __future__ import annotations

import numpy as np

from semblend.core.tokens import TokenArray
from tests.integration.models import joined, random_tokens

DOCUMENT = random_tokens(420, seed=1)
DONOR = joined(random_tokens(50, seed=2), DOCUMENT, random_tokens(20, seed=3))
TARGET = joined(random_tokens(110, seed=4), DOCUMENT, random_tokens(33, seed=5))


def mixed_requests(count: int = 44) -> tuple[list[TokenArray], list[TokenArray]]:
    """Donors, and requests of every kind: moved, several donors, edited, exact, new, short."""
    passages = [random_tokens(90 + 13 * n, seed=100 + n) for n in range(6)]
    donors = [joined(random_tokens(37 + n, seed=200 + n), passages[n]) for n in range(6)]
    choose = np.random.default_rng(9)
    requests: list[TokenArray] = []
    for index in range(count):
        head = random_tokens(int(choose.integers(5, 60)), seed=300 + index)
        tail = random_tokens(int(choose.integers(1, 24)), seed=400 + index)
        picked = [passages[n] for n in choose.permutation(6)]
        kind = index % 6
        if kind == 0:
            requests.append(joined(head, picked[0], tail))
        elif kind == 1:
            middle = random_tokens(11, seed=500 + index)
            requests.append(joined(head, picked[0], middle, picked[1], picked[2], tail))
        elif kind == 2:
            edited = picked[0].copy()
            edited[len(edited) // 2] = 3 + (edited[len(edited) // 2] + 1) % 500
            requests.append(joined(head, edited, picked[3], tail))
        elif kind == 3:
            requests.append(joined(donors[index % 6], tail))
        elif kind == 4:
            requests.append(random_tokens(150 + index, seed=600 + index))
        else:
            requests.append(joined(tail, random_tokens(20, seed=700 + index)))
    return donors, requests
