"""The plugin: what SGLang calls in each of its processes, and the backend's factory.

Entry point group `sglang.srt.plugins`. Registering costs nothing and changes nothing:
the backend is built only where `--radix-cache-backend semblend` asks for it, and the
hook passes every call on until then. Whatever this SGLang lacks, the backend's name is registered
where that is possible: the flag takes registered names only, and `starting` decides how far we go.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

from semblend.core.distribution import require_this_distribution
from semblend.core.errors import ForeignDistributionError
from semblend.integration.sglang.log_lines import logger

BACKEND = "semblend"
_problems: list[str] = []
_followers: list[Callable[[Any], object]] = []


def register() -> None:
    """Register the backend and the hook. Called by SGLang; safe to call again."""
    from semblend.integration.sglang.contract import registration_problems

    try:
        require_this_distribution("sglang")
        _problems[:] = registration_problems()
    except ForeignDistributionError as error:
        _problems[:] = [str(error)]
    if _problems:
        logger.warning("SemBlend does not serve in this SGLang: %s", "; ".join(_problems))
        return
    from sglang.srt.mem_cache.registry import get_radix_cache_factory, register_radix_cache_backend

    if get_radix_cache_factory(BACKEND) is None:
        register_radix_cache_backend(BACKEND, build)
        _register_hook()


def _register_hook() -> None:
    """Without the hook nothing is loaded: the factory asks whether it is there."""
    from semblend.integration.sglang.contract import HOOKED
    from semblend.integration.sglang.forward_hook import before_forward

    try:
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType

        HookRegistry.register(HOOKED, before_forward, HookType.AROUND)
    except (ImportError, AttributeError) as error:
        logger.warning("SemBlend's hook cannot be registered: %s", error)


def problems() -> tuple[str, ...]:
    """Why the backend could not be registered in this process; empty if it could."""
    return tuple(_problems)


def unseen() -> str | None:
    """Why SGLang's own processes would not find the plugin, if so."""
    if not entry_points(group="sglang.srt.plugins", name=BACKEND):
        return "no entry point: SemBlend must be installed as a package, not only importable"
    allowed = os.environ.get("SGLANG_PLUGINS", "")
    if allowed and BACKEND not in [name.strip() for name in allowed.split(",")]:
        return f"SGLANG_PLUGINS={allowed} leaves {BACKEND} out"
    return None


def when_built(follower: Callable[[Any], object]) -> None:
    """Have `follower` called with a radix cache that is built in this process."""
    if follower not in _followers:
        _followers.append(follower)


def build(context: Any) -> Any:
    """The factory SGLang calls for `--radix-cache-backend semblend`."""
    # Imported here: it needs SGLang's tree, which only the scheduler's process has.
    starting = importlib.import_module("semblend.integration.sglang.starting")
    return starting.build_tree_cache(context, followers=_followers)
