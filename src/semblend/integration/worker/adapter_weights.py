"""Whether an engine's LoRA adapters still have the weights they had.

Engines load adapters from their files as requests need them, drop them for others, and read the
files again. What is read then may have changed under the same number.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from semblend.kv.fingerprint import tensors_fingerprint

_MOST_NOTED = 1 << 16
"""Adapters whose weights are remembered; a server that loads more is not followed."""


class AdapterWeights:
    """What the weights were when they were first seen."""

    def __init__(self, named: Callable[[Any], Iterable[tuple[str, torch.Tensor]]]) -> None:
        """`named` gives all numbers of what an engine holds for an adapter."""
        self._named = named
        self._noted: dict[int, str] = {}
        """Fingerprints by number, also of adapters that were dropped since."""
        self._seen: dict[int, weakref.ref[Any]] = {}
        """What is held by number, as far as its fingerprint was taken."""
        self._differ = False

    def changed(self, held: Mapping[int, Any]) -> bool:
        """Whether some adapter has come back with other weights, among those held or before."""
        if self._differ:
            return True
        self._seen = {number: seen for number, seen in self._seen.items() if number in held}
        for number, weights in held.items():
            if number in self._seen and self._seen[number]() is weights:
                continue
            now = tensors_fingerprint(self._named(weights))
            self._differ |= self._noted.setdefault(number, now) != now
            self._seen[number] = weakref.ref(weights)
        self._differ |= len(self._noted) > _MOST_NOTED
        return self._differ
