"""Functions that tests run inside the scheduler's process."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np


class InjectedError(Exception):
    """Not one of ours: nothing may rely on the kind of error."""


def flush(host: Any) -> None:
    host.scheduler.flush_wrapper_for_tests = None
    assert host.scheduler.flush_cache(), "the engine is not idle"
    host.side._failures = 0


def take_forwards(host: Any) -> list[list[tuple[str, int, int]]]:
    taken, host.forwards = host.forwards, []
    return taken


def kv_of(host: Any, rid: str, start: int, end: int) -> np.ndarray:
    """K/V at a request's positions, [layers, 2, tokens, kv_heads, head_dim].

    Slots are not cleared when they are freed: right after a request ran alone, its K/V
    is still there.
    """
    slots = host.rows[rid][start:end].long()
    pool = host.runner.token_to_kv_pool
    layers = zip(pool.k_buffer, pool.v_buffer, strict=True)
    return np.stack([np.stack((k[slots].numpy(), v[slots].numpy())) for k, v in layers])


def counts(host: Any) -> dict[str, int]:
    return dict(host.side.stats.counts)


def donors(host: Any) -> int:
    return host.side.provider.stats().donors


def break_function(host: Any, target: str, times: int | None) -> None:
    calls = [0]
    owner, _, name = target.rpartition(".")
    import pkgutil

    original = getattr(pkgutil.resolve_name(owner), name)

    def broken(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if times is None or calls[0] <= times:
            raise InjectedError(target)
        return original(*args, **kwargs)

    host.patches.enter_context(patch(target, broken))


def mend(host: Any) -> None:
    host.patches.close()


def idle_checks(host: Any) -> list[str]:
    """What SGLang's own invariant checks say now, and have said."""
    checker = host.scheduler.invariant_checker
    stats = host.scheduler.pool_stats_observer.get_pool_stats()
    leaky, messages = checker._check_all_pools(stats)
    checker._check_req_pool()
    host.cache.sanity_check()
    return [*host.leaks, *(messages if leaky else ())]
