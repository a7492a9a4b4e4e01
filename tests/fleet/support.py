"""Prompts, keys and events for tests of the fleet."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from semblend.core.namespace import Namespace
from semblend.core.tokens import TokenArray
from semblend.fleet.announcer import HeldDonor
from semblend.fleet.events.event_values import (
    DonorRegistered,
    Event,
    EventData,
    EventSegment,
    Location,
)
from semblend.fleet.keys import FleetKeys
from semblend.fleet.sketch import MARK_TOKENS, sketch

SECRET = b"a secret of the fleet's own"
NAMESPACE = Namespace.of(model="m", tenant="tenant-a")
KEYS = FleetKeys.of(NAMESPACE, SECRET)
OTHER_KEYS = FleetKeys.of(NAMESPACE.with_parts(tenant="tenant-b"), SECRET)


def prompt(seed: int, size: int) -> TokenArray:
    return np.random.default_rng(seed).integers(0, 50_000, size).astype(np.int32)


def registered(
    donor_id: str,
    tokens: TokenArray,
    *,
    keys: FleetKeys = KEYS,
    sampling: int = 4,
    location: Location | None = None,
    generation: int = 1,
) -> DonorRegistered:
    drawn = sketch(tokens, keys, sampling=sampling)
    return DonorRegistered(
        donor_id=donor_id,
        namespace_id=keys.namespace_id,
        token_count=len(tokens),
        generation=generation,
        location=location or Location(worker_id="w", tier="host"),
        segments=tuple(
            EventSegment(start=i * MARK_TOKENS, end=(i + 1) * MARK_TOKENS, digest=int(mark))
            for i, mark in enumerate(drawn.marks)
        ),
        sampling=sampling,
        hashes=drawn.hashes,
    )


def event(event_id: int, data: EventData, worker: str = "w", rank: int = 0) -> Event:
    return Event(event_id=event_id, worker_id=worker, dp_rank=rank, data=data)


def until(condition: Callable[[], Any], what: str, timeout_s: float = 60.0) -> Any:
    """Wait for something on another thread; the bound only ends a broken test."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout_s:g} s for {what}")
        time.sleep(0.01)
    return value


slow = pytest.mark.skipif(
    os.environ.get("FLEET_TESTS") != "required", reason="starts engines; runs with make test-fleet"
)


def need(found: object, what: str) -> None:
    """Skip loudly without a component; `make test-fleet` promises them all, and fails instead."""
    if found:
        return
    message = f"{what} is not installed; scripts/fleet_env.sh brings it"
    if os.environ.get("FLEET_TESTS") == "required":
        pytest.fail(message)
    pytest.skip(message)


def need_environment(python: Path, engine: str, script: str) -> None:
    """Engines have environments of their own; without one its tests are skipped, loudly."""
    if not python.exists():
        pytest.skip(f"{engine}'s environment is not there; {script} makes it")


def need_own_network() -> None:
    """Components that listen on all addresses run in a network namespace, which root can make."""
    if os.geteuid() != 0 or not shutil.which("unshare"):
        pytest.skip("needs the right to make a network namespace")


class Shelf:
    """A library of donors without an engine."""

    def __init__(self) -> None:
        self.held: dict[str, HeldDonor] = {}
        self.listeners: list[Any] = []

    def __len__(self) -> int:
        return len(self.held)

    def inventory(self) -> Iterable[HeldDonor]:
        return list(self.held.values())

    def add_listener(self, listener: Any) -> None:
        self.listeners.append(listener)

    def keep(self, donor_id: str, tokens: TokenArray, namespace: Namespace = NAMESPACE) -> None:
        self.held[donor_id] = (donor_id, tokens, namespace)
        for listener in self.listeners:
            listener.donor_kept(donor_id, tokens, namespace)

    def lose(self, donor_id: str) -> None:
        del self.held[donor_id]
        for listener in self.listeners:
            listener.donor_lost(donor_id)
