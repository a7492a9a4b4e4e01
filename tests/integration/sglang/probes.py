"""Functions that tests run inside the scheduler's process."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock, patch

import numpy as np


class InjectedError(Exception):
    """Not one of ours: nothing may rely on the kind of error."""


def flush(host: Any) -> None:
    assert host.scheduler.flush_cache(), "the engine is not idle"
    host.side.admissions.failures = 0


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
    return np.stack([np.stack((k[slots].cpu().numpy(), v[slots].cpu().numpy())) for k, v in layers])


def counts(host: Any) -> dict[str, int]:
    data = host.side.stats.data
    return data["counts"] | {
        f"{part}:{name}": amount
        for part in ("requests", "declines", "tokens")
        for name, amount in data[part].items()
    }


def wait_for_donors(host: Any) -> None:
    host.side.wait_for_donors()


def donors(host: Any) -> int:
    host.side.wait_for_donors()
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


def donor_kv(host: Any, tokens: list[int]) -> np.ndarray:
    """K/V the tree holds for a prompt, [layers, 2, tokens, kv_heads, head_dim]."""
    from array import array

    from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams
    from sglang.srt.mem_cache.radix_cache import RadixKey

    found = host.cache.match_prefix(MatchPrefixParams(key=RadixKey(array("q", tokens))))
    assert found.device_prefix_len == len(tokens)
    host.rows["donor"] = host.cache.path_device_indices(found.last_device_node)
    return kv_of(host, "donor", 0, len(tokens))


def copies_of(host: Any, rid: str) -> tuple[Any, ...]:
    """The spans that were copied for a request."""
    return host.requests[rid].semblend_state.handle.load.plan.copies


def open_requests(host: Any) -> int:
    return host.side.provider.pipeline.ledger.totals().open_requests


def rewrite_plans(host: Any, how: str) -> None:
    """Change plans before they are offered."""
    from dataclasses import replace

    from semblend.core.plan import Hole

    provider = host.side.provider
    original = host.memory.setdefault("plan", provider.plan)

    def all_holes(plan: Any) -> Any:
        if not plan.spans:
            return plan
        return replace(plan, recompute=(Hole(plan.spans[0].target_start, plan.end),))

    def matched(*args: Any, **options: Any) -> Any:
        return all_holes(original(*args, **options))

    provider.plan = original if how == "as_they_are" else matched
    passes = host.side._passes
    tokens = host.memory.setdefault("tokens", passes.limits.tokens)
    wanted = 1 if how == "holes_of_one_token" else tokens
    passes.limits = replace(passes.limits, tokens=wanted)


def rewrite_with(host: Any, function: Any) -> None:
    """What every plan passes through; None leaves it as it is."""
    host.side.provider.planner._rewrite = function


def one_hole_a_pass(host: Any, wanted: bool) -> None:
    from dataclasses import replace

    passes = host.side._passes
    passes.limits = replace(passes.limits, together=not wanted)


def clear_failures(host: Any, failures: int = 0) -> None:
    host.side.admissions.failures = failures


def tree_holds(host: Any, tokens: list[int]) -> int:
    """How much of a prompt the tree holds."""
    from array import array

    from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams
    from sglang.srt.mem_cache.radix_cache import RadixKey

    key = RadixKey(array("q", tokens))
    return host.cache.match_prefix(MatchPrefixParams(key=key)).device_prefix_len


def empty_the_tree_alone(host: Any) -> None:
    """K/V goes, and the index has not heard of it yet."""
    told, host.side.freed = host.side.freed, lambda slots: None
    empty_the_tree(host)
    host.side.freed = told


def empty_the_tree(host: Any) -> None:
    """Evict everything."""
    from sglang.srt.mem_cache.base_prefix_cache import EvictParams

    host.cache.evict(EvictParams(num_tokens=host.cache.evictable_size()))
    assert host.cache.evictable_size() == 0


def evictable(host: Any) -> int:
    """Tokens the tree holds while nothing runs."""
    return int(host.cache.evictable_size())


def known_and_held(host: Any) -> tuple[set[bytes], set[bytes]]:
    """Prompts that may be found, and those of all there ever were that the tree holds whole."""
    host.side.wait_for_donors()
    known = {record.tokens.tobytes() for record in host.side.provider._donors.values()}
    return known, {
        record.tokens.tobytes()
        for record in host.memory["ever"]
        if tree_holds(host, record.tokens.tolist()) >= len(record.tokens)
    }


def remember_donors(host: Any) -> None:
    """Keep a record of every donor from now on."""
    ever = host.memory["ever"] = []
    original = host.side._donors._registered

    def registered(offer: Any, record: Any) -> None:
        ever.append(record)
        original(offer, record)

    host.side._donors._registered = registered


def forget_contents(host: Any) -> None:
    """Let the same passage be registered again, so that two donors hold it."""
    host.side.provider.planner._contents.clear()


def lose_a_slot(host: Any) -> None:
    host.memory["tolerate_leaks"] = True
    host.memory["slot"] = host.cache.token_to_kv_pool_allocator.alloc(1)


def find_the_slot(host: Any) -> None:
    host.cache.token_to_kv_pool_allocator.free(host.memory.pop("slot"))
    host.leaks.clear()
    host.memory["tolerate_leaks"] = False


def set_hole_budget(host: Any, tokens: int | None) -> None:
    kept = host.memory.setdefault("budget", host.side.admissions.hole_budget)
    host.side.admissions.hole_budget = kept if tokens is None else tokens


def retract_now(host: Any, wanted: bool) -> None:
    """SGLang's own switch for testing retraction."""
    import sglang.srt.managers.scheduler as module

    module.TEST_RETRACT = wanted


def retractions(host: Any, rids: list[str]) -> int:
    return sum(host.requests[rid].retraction_count for rid in rids)


def is_tainted(host: Any, rid: str) -> bool:
    state = getattr(host.requests[rid], "semblend_state", None)
    return state is not None and state.tainted


def donates(host: Any, rid: str) -> bool:
    """Whether the request's prompt is a donor, or would be if it had been matched."""
    state = getattr(host.requests[rid], "semblend_state", None)
    return state is None or state.handle.donated


def set_policy(host: Any, spec: str) -> None:
    """Plan with another recompute policy from now on."""
    from semblend.planning.policies.base import policy_from_spec

    host.side.provider.pipeline._policy = policy_from_spec(spec)


def without_foresight(host: Any) -> None:
    """Probe although the second pass does not pay."""
    target = "semblend.planning.planner.with_probe_cost"
    host.patches.enter_context(patch(target, lambda plan, *_, **__: plan))


def count_plans(host: Any) -> None:
    """Count plans made and matches asked for, from now on."""
    side = host.side
    host.memory["plans"] = side.provider.plan = Mock(wraps=side.provider.plan)
    host.memory["matches"] = side.offered = Mock(wraps=side.offered)


def counted_plans(host: Any) -> tuple[int, int]:
    counts = host.memory["plans"].call_count, host.memory["matches"].call_count
    del host.side.provider.plan, host.side.offered
    return counts


def holes_of(host: Any, rid: str) -> tuple[Any, ...]:
    """The holes a request's plan had in the end."""
    return host.requests[rid].semblend_state.handle.load.plan.holes


def recompute_instead(host: Any, runs: list[tuple[int, int]]) -> None:
    """Plans recompute these runs from now on, until plans are "as_they_are" again."""
    from dataclasses import replace

    from semblend.core.plan import Hole
    from semblend.planning.recompute import inside_spans

    provider = host.side.provider
    original = host.memory.setdefault("plan", provider.plan)

    def matched(*args: Any, **options: Any) -> Any:
        plan = original(*args, **options)
        wanted = inside_spans([Hole(*run) for run in runs], plan.spans)
        return replace(plan, recompute=wanted)

    provider.plan = matched


def failures(host: Any) -> int:
    return int(host.side.admissions.failures)


def hide_queries(host: Any) -> None:
    """Attention layers whose hooks are never called."""
    target = "semblend.integration.sglang.nested_pass.watch_queries"
    host.patches.enter_context(patch(target, lambda *_, **__: Mock()))


def shares_passes(host: Any) -> bool:
    return bool(host.side._passes.limits.together)


def proof(host: Any) -> bool:
    """Try once more whether holes share a pass."""
    from semblend.integration.sglang.pass_proof import proven
    from semblend.integration.worker.host_ranks import MeetingRanks

    return proven(host.runner, host.cache, host.side._passes.limits, MeetingRanks()).together


def attend_first(host: Any) -> None:
    """Have extends read K/V before they write it, each sequence but its own."""
    import torch

    backend, pool = host.runner.attn_backend, host.runner.token_to_kv_pool
    forward = backend.forward_extend

    def reading_first(
        q: Any, k: Any, v: Any, layer: Any, batch: Any, save_kv_cache: bool = True, **kwargs: Any
    ) -> Any:
        keys, values = pool.k_buffer[layer.layer_id], pool.v_buffer[layer.layer_id]
        slots, lengths = batch.out_cache_loc, batch.extend_seq_lens_cpu
        old = keys[slots].clone(), values[slots].clone()
        new = k.view(-1, *keys.shape[1:]), v.view(-1, *values.shape[1:])
        outputs, start = [], 0
        for length in lengths:
            mine = slice(start, start + length)
            keys[slots], values[slots] = old
            keys[slots[mine]], values[slots[mine]] = new[0][mine], new[1][mine]
            output = forward(q, k, v, layer, batch, save_kv_cache=False, **kwargs)
            outputs.append(output[mine].clone())
            start += length
        keys[slots], values[slots] = new
        return torch.cat([*outputs, output[start:]])

    host.patches.enter_context(patch.object(backend, "forward_extend", reading_first))


class _PrefillGraph:
    """As SGLang's prefill graphs: what it replays calls no module."""

    enable_cp_bcg_capture = False

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self.replays = 0

    def can_run_graph(self, batch: Any) -> bool:
        return bool(batch.forward_mode.is_extend())

    def execute(self, batch: Any, **_: Any) -> Any:
        from sglang.srt.layers.radix_attention import RadixAttention

        self.replays += 1
        with patch.object(RadixAttention, "__call__", RadixAttention.forward):
            return self._runner.eager_runner.execute(batch, pp_proxy_tensors=None)


def with_prefill_graphs(host: Any) -> None:
    graph = host.memory["graph"] = _PrefillGraph(host.runner)
    host.patches.enter_context(patch.object(host.runner, "prefill_cuda_graph_runner", graph))


def replays(host: Any) -> int:
    return int(host.memory["graph"].replays)
