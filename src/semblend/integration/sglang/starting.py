"""How far the backend goes in the SGLang it finds itself in.

Called for `--radix-cache-backend semblend`, in the scheduler's process.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from typing import Any

from semblend.integration.refusals import Refusal
from semblend.integration.running_mode import RunningMode
from semblend.integration.sglang.contract import discovery_problems
from semblend.integration.sglang.forward_hook import is_installed
from semblend.integration.sglang.log_lines import logger
from semblend.integration.sglang.options import BackendOptions
from semblend.integration.sglang.support import engine_refusals, other_cache_refusals
from semblend.integration.starting import Start, build, start_of


def build_tree_cache(context: Any, *, followers: Iterable[Callable[[Any], object]] = ()) -> Any:
    """The backend, of which `followers` are told, or the cache that SGLang makes without us.

    Raises
    ------
    SettingsError
        If an option or a setting is wrong.
    UnsupportedEngineError
        With SEMBLEND_STRICT_START, naming everything in this engine that stands in the way.
    """
    options = BackendOptions.from_env()
    settings = options.settings()
    start = start_of(
        options,
        settings,
        loading=lambda: loading_refusals(context, options),
        discovery=lambda: [*discovery_problems(), *other_cache_refusals(context)],
    )
    start, cache = build(start, settings, lambda start: _build_ours(context, options, start))
    if start.does_nothing:
        from sglang.srt.mem_cache.registry import default_radix_cache_factory

        RunningMode.nothing(options.mode, str(start.objection)).say(logger)
        return default_radix_cache_factory(context)
    if cache is not None and cache.side.speaks:
        for follower in followers:
            follower(cache)
    return cache


def _build_ours(context: Any, options: BackendOptions, start: Start) -> Any:
    # Imported here: its classes are made of SGLang's, which were only now found as they are known.
    setup = importlib.import_module("semblend.integration.sglang.setup")
    return setup.build_cache(context, options, start)


def loading_refusals(context: Any, options: BackendOptions) -> Iterable[Refusal]:
    """Everything in this engine under which donor K/V must not be loaded."""
    yield from engine_refusals(context, options)
    if not is_installed(context.tp_worker):
        yield Refusal(
            feature="the forward hook is not installed",
            remedy="SGLANG_PLUGINS must not leave out semblend",
        )
