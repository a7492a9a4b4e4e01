"""Building the backend: everything it needs to know about the engine, worked out once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from semblend.integration.model_cost import cost_model
from semblend.integration.model_identity import added_quantization
from semblend.integration.probing import can_probe
from semblend.integration.refusals import Refusal, UnsupportedEngineError
from semblend.integration.running_mode import RunningMode
from semblend.integration.scheduler.setup import may_load, standing_for
from semblend.integration.sentence_ends import boundaries_of
from semblend.integration.sglang import namespaces
from semblend.integration.sglang.forward_hook import attach, is_installed
from semblend.integration.sglang.kv_pool import KvPool
from semblend.integration.sglang.loading import SpanLoader
from semblend.integration.sglang.log_lines import BackendLog, logger
from semblend.integration.sglang.nested_pass import NestedPass, PassLimits
from semblend.integration.sglang.options import BackendOptions
from semblend.integration.sglang.pass_proof import proven
from semblend.integration.sglang.passes import RegionPasses
from semblend.integration.sglang.provider import SemBlendProvider
from semblend.integration.sglang.radix_cache import SemBlendRadixCache
from semblend.integration.sglang.rotary import table_from_model
from semblend.integration.sglang.scheduler_side import SchedulerSide
from semblend.integration.sglang.stats import BackendStats
from semblend.integration.sglang.support import (
    engine_refusals,
    resolved,
)
from semblend.integration.sglang.tail_probe import PolicyProbe
from semblend.kv.depth_drift import read_table

_UNCHUNKED_PASS = 8192
"""Tokens of a pass where the engine does not cut its prefills."""


def build_cache(context: Any) -> SemBlendRadixCache:
    """The backend for one engine.

    Raises
    ------
    UnsupportedEngineError
        Naming everything in this engine under which nothing may be loaded.
    """
    options = BackendOptions.from_env()
    settings = options.settings()
    if options.mode.loads and not settings.discovery_only:
        refusals = engine_refusals(context, options)
        if not is_installed(context.tp_worker):
            refusals.append(
                Refusal(
                    feature="the forward hook is not installed",
                    remedy="SGLANG_PLUGINS must not leave out semblend",
                )
            )
        if refusals:
            raise UnsupportedEngineError(refusals)
    from sglang.srt.mem_cache.registry import create_unified_radix_cache

    cache = create_unified_radix_cache(context, cache_class=SemBlendRadixCache)
    cache.semblend = _side(context, cache, options)
    attach(context.tp_worker, cache.semblend)
    return cache  # type: ignore[no-any-return]


def _side(context: Any, cache: SemBlendRadixCache, options: BackendOptions) -> SchedulerSide:
    runner = context.tp_worker.model_runner
    settings = options.settings()
    namespace = namespaces.engine_namespace(context, options, settings)
    model = runner.model_config
    standing = standing_for(
        options.mode,
        str(model.model_path),
        model.hf_config,
        dtype=str(model.dtype).removeprefix("torch."),
        settings=settings,
        revision=getattr(model, "revision", None),
        quantization=added_quantization(**namespaces.quantised(context)),
        can_run=can_probe,
    )
    provider = SemBlendProvider(
        namespace,
        settings,
        page_size=int(cache.page_size),
        cost=cost_model(model.hf_text_config),
        standing=standing,
        boundaries=boundaries_of(lambda: getattr(context.tp_worker, "tokenizer", None), logger),
    )
    budget = _pass_tokens(context.server_args)
    loads = may_load(options.mode, settings, standing)
    loader, passes = None, None
    if loads:
        pool = KvPool(runner, table_from_model(runner.model))
        table = standing.depth_table
        drift = None if table is None else read_table(table)
        loader = SpanLoader(cache, pool, provider, drift)
        limits = PassLimits(
            sequences=int(runner.max_running_requests),
            tokens=budget,
            many_holes=False,
        )
        shared = proven(runner, cache, NestedPass(runner, limits))
        nested = NestedPass(runner, replace(limits, many_holes=shared))
        probe = PolicyProbe(runner, pool=pool, nested=nested, loader=loader)
        passes = RegionPasses(runner, pool=pool, nested=nested, probe=probe)
    running = RunningMode.of(
        options.mode,
        given="mode" in options.model_fields_set,
        settings=settings,
        standing=standing,
        model=str(runner.model_config.model_path),
    )
    logger.log(running.level, "%s", running)
    if unheeded := options.unheeded():
        logger.warning("SemBlend: %s", unheeded)
    return SchedulerSide(
        options=options,
        provider=provider,
        log=BackendLog(options),
        stats=BackendStats(
            export=bool(context.params.enable_metrics),
            labels={"model_name": str(namespace.model)},
            mode=options.mode.value,
        ),
        loader=loader,
        passes=passes,
        hole_budget=options.max_hole_tokens_per_step or budget,
        certified=standing.certificate is not None,
        standing=standing,
    )


def _pass_tokens(server_args: Any) -> int:
    chunk = int(resolved(server_args).chunked_prefill_size or 0)
    return chunk if chunk > 0 else _UNCHUNKED_PASS
