"""Building the backend: everything it needs to know about the engine, worked out once."""

from __future__ import annotations

from functools import partial
from typing import Any

from semblend.integration.loaded_model.model_cost import cost_model
from semblend.integration.loaded_model.model_identity import added_quantization
from semblend.integration.loaded_model.rotary_rows import proven_table
from semblend.integration.loaded_model.sentence_ends import boundaries_of
from semblend.integration.probing import can_probe
from semblend.integration.provider import SemBlendProvider
from semblend.integration.running_mode import RunningMode
from semblend.integration.scheduler.setup import may_load, standing_for
from semblend.integration.sglang import namespaces
from semblend.integration.sglang.forward_hook import attach
from semblend.integration.sglang.hicache import HostTier
from semblend.integration.sglang.kv_pool import KvPool
from semblend.integration.sglang.loading import SpanLoader
from semblend.integration.sglang.log_lines import BackendLog, logger
from semblend.integration.sglang.options import BackendOptions
from semblend.integration.sglang.pass_proof import proven
from semblend.integration.sglang.passes import RegionPasses
from semblend.integration.sglang.radix_cache import SemBlendRadixCache
from semblend.integration.sglang.scheduler_side import SchedulerSide
from semblend.integration.sglang.stats import backend_stats
from semblend.integration.sglang.support import resolved
from semblend.integration.starting import Start
from semblend.integration.worker.pool_copies import PoolCopies
from semblend.integration.worker.sequences import PassLimits
from semblend.kv.depth_drift import read_table

_UNCHUNKED_PASS = 8192
"""Tokens of a pass where the engine does not cut its prefills."""


def build_cache(context: Any, asked: BackendOptions, start: Start) -> SemBlendRadixCache:
    """The backend for one engine, as far as it may go."""
    from sglang.srt.mem_cache.registry import create_unified_radix_cache

    made = partial(SemBlendRadixCache, make_side=partial(_side, context, asked, start))
    cache = create_unified_radix_cache(context, cache_class=made)
    attach(context.tp_worker, cache.side)
    return cache  # type: ignore[no-any-return]


def _side(
    context: Any, asked: BackendOptions, start: Start, cache: SemBlendRadixCache
) -> SchedulerSide:
    options = start.allowed(asked)
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
        pool, table = KvPool(runner), standing.depth_table
        copies = PoolCopies(
            pool.slots,
            proven_table(runner.model),
            drift=None if table is None else read_table(table),
            stream=pool.stream,
        )
        loader = SpanLoader(cache, copies, provider)
        # The engine's input buffers have this many rows: more would crash it.
        limits = PassLimits(sequences=int(runner.max_running_requests), tokens=budget)
        limits = proven(runner, cache, limits)
        passes = RegionPasses(runner, pool=pool, copies=copies, limits=limits, loader=loader)
    running = RunningMode.of(
        asked.mode,
        given="mode" in asked.model_fields_set,
        settings=asked.settings(),
        standing=standing,
        model=str(runner.model_config.model_path),
        objection=start.objection,
    )
    logger.log(running.level, "%s", running)
    if unheeded := options.unheeded():
        logger.warning("SemBlend: %s", unheeded)
    return SchedulerSide(
        options=options,
        provider=provider,
        log=BackendLog(options),
        stats=backend_stats(
            export=bool(context.params.enable_metrics),
            model=str(namespace.model),
            mode=options.mode.value,
        ),
        loader=loader,
        passes=passes,
        hole_budget=options.max_hole_tokens_per_step or budget,
        standing=standing,
        host_tier=HostTier(cache),
    )


def _pass_tokens(server_args: Any) -> int:
    chunk = int(resolved(server_args).chunked_prefill_size or 0)
    return chunk if chunk > 0 else _UNCHUNKED_PASS
