"""Building the backend: everything it needs to know about the engine, worked out once."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from semblend.integration.loaded_model.model_certificates import standing_for
from semblend.integration.loaded_model.model_cost import cost_model
from semblend.integration.loaded_model.rotary_rows import proven_table
from semblend.integration.loaded_model.sentence_ends import boundaries_of
from semblend.integration.modes import CapturePolicy
from semblend.integration.probing import can_probe
from semblend.integration.provider import SemBlendProvider
from semblend.integration.running_mode import RunningMode
from semblend.integration.scheduler.chain_rules import ChainRules
from semblend.integration.scheduler.setup import CaptureRules, may_load
from semblend.integration.sglang import namespaces
from semblend.integration.sglang.batch_rows import BatchRows
from semblend.integration.sglang.forward_hook import attach
from semblend.integration.sglang.kv_pool import KvPool
from semblend.integration.sglang.log_lines import ENGINE, BackendLog, logger
from semblend.integration.sglang.nested_pass import attention_layers
from semblend.integration.sglang.options import BackendOptions
from semblend.integration.sglang.pass_proof import proven
from semblend.integration.sglang.radix_cache import SemBlendRadixCache
from semblend.integration.sglang.scheduler_side import SchedulerSide
from semblend.integration.sglang.stats import backend_stats
from semblend.integration.sglang.support import resolved
from semblend.integration.sglang.tree_port import RadixTree, chain_problems
from semblend.integration.starting import Start
from semblend.integration.tree.region_passes import RegionPasses
from semblend.integration.tree.tree_chains import TreeChains
from semblend.integration.tree.tree_loader import TreeLoader
from semblend.integration.tree.tree_side import TreeParts
from semblend.integration.worker.host_ranks import MeetingRanks
from semblend.integration.worker.pool_copies import PoolCopies
from semblend.integration.worker.sequences import PassLimits
from semblend.kv.depth_drift import DepthDrift, read_table

_UNCHUNKED_PASS = 8192
"""Tokens of a pass where the engine does not cut its prefills."""
_WAITING = 256
"""Prompts that may be in line to become donors."""


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
    ranks = _ranks()
    if ranks.rank:  # the first one speaks for all
        options = options.model_copy(update={"audit_path": None})
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
        can_run=can_probe,
        **namespaces.asked_at_load(model, context.server_args),
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
    loader, passes = None, None
    turns = min(options.chain_turns, standing.chain_turns)
    if may_load(options.mode, settings, standing):
        pool, tree = KvPool(runner), RadixTree(cache)
        copies = PoolCopies(
            pool.slots,
            proven_table(runner.model),
            drift=_drift(standing.depth_table, pool, ranks),
            stream=pool.stream,
        )
        chains = _chains(context, tree, provider, turns)
        loader = TreeLoader(tree, copies, provider, ranks, chains)
        # The engine's input buffers have this many rows: more would crash it.
        limits = PassLimits(sequences=int(runner.max_running_requests), tokens=budget)
        passes = RegionPasses(
            access=pool,
            copies=copies,
            limits=proven(runner, cache, limits, ranks),
            ranks=ranks,
            seen=partial(
                BatchRows,
                runner=runner,
                attention=attention_layers(runner.model, pool.layer_count),
                loader=loader,
                ranks=ranks,
            ),
        )
    running = RunningMode.of(
        asked,
        settings=asked.settings(),
        standing=standing,
        model=str(runner.model_config.model_path),
        objection=start.objection,
    )
    running.say(logger, unheeded=options.unheeded())
    log = BackendLog(options)
    parts = TreeParts(
        engine=ENGINE,
        mode=options.mode,
        provider=provider,
        audit=log,
        placed=log.placed,
        stats=backend_stats(
            export=bool(context.params.enable_metrics),
            model=str(namespace.model),
            mode=options.mode.value,
        ),
        loader=loader,
        passes=passes,
        hole_budget=options.max_hole_tokens_per_step or budget,
        failures_before_off=options.failures_before_off,
        capture=CaptureRules(
            policy=CapturePolicy.ALL if options.register_donors else CapturePolicy.NONE,
            queue=_WAITING,
            min_prompt_tokens=settings.min_prompt_tokens,
        ),
        standing=standing,
        ranks=ranks,
    )
    return SchedulerSide(parts, options=options, cache=cache)


def _ranks() -> MeetingRanks:
    """The ranks that share this process's model."""
    from sglang.srt.distributed import get_tp_group

    group = get_tp_group()
    return MeetingRanks(group.cpu_group if group.world_size > 1 else None)


def _chains(
    context: Any, tree: RadixTree, provider: SemBlendProvider, turns: int
) -> TreeChains | None:
    """Conversations, where they can go on over approximate K/V."""
    if turns < 2:
        return None
    problems = chain_problems(resolved(context.server_args), context.params)
    if problems:
        logger.info("SemBlend continues no conversations: %s", "; ".join(problems))
        return None
    return TreeChains(tree, ChainRules(pipeline=provider.pipeline), max_turns=turns)


def _drift(table: Path | None, pool: KvPool, ranks: MeetingRanks) -> DepthDrift | None:
    """This rank's heads of a table of depth drift."""
    if table is None:
        return None
    return read_table(table).of_rank(
        layers=pool.layer_count, kv_heads=pool.kv_heads, rank=ranks.rank, ranks=ranks.count
    )


def _pass_tokens(server_args: Any) -> int:
    chunk = int(resolved(server_args).chunked_prefill_size or 0)
    return chunk if chunk > 0 else _UNCHUNKED_PASS
