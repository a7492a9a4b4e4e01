"""What the fuzz sees and does inside the scheduler's process."""

from __future__ import annotations

from typing import Any

from semblend.core.plan import Plan
from semblend.core.tokens import TokenArray
from semblend.integration.sglang.request_state import known_state
from semblend.integration.tree.admitted import loads_of


def watch(host: Any) -> None:
    """Keep loads, donors, split prompts and the largest batch from now on."""
    seen = host.memory["fuzz"] = {"loads": {}, "donors": [], "split": set(), "largest": 0}
    complete, registered = host.side._passes.complete, host.side._donors._registered
    run = host.scheduler.run_batch

    def completed(batch: Any, loaded: Any, *more: Any) -> Any:
        result = complete(batch, loaded, *more)
        for _, state, load in loads_of(loaded):
            if load.plan.reused_tokens:
                after = len(state.handle.tokens) - state.account.prompt_tokens
                plan = state.handle.load.plan  # a probing policy has replaced it
                seen["loads"].setdefault(state.request_id, []).append((after, plan))
        return result

    def donor(offer: Any, record: Any) -> None:
        seen["donors"].append((record.donor_id, record.tokens, record.cache_salt))
        registered(offer, record)

    def noted(batch: Any, *more: Any, **named: Any) -> Any:
        seen["largest"] = max(seen["largest"], len(batch.reqs))
        if batch.forward_mode.is_extend():
            rows = zip(batch.reqs, batch.prefix_lens, batch.extend_lens, strict=True)
            seen["split"] |= {
                request.rid
                for request, there, more in rows
                if there + more < len(request.origin_input_ids)
            }
        return run(batch, *more, **named)

    host.side._passes.complete = completed
    host.side._donors._registered = donor
    host.scheduler.run_batch = noted


def news(host: Any) -> tuple[list[tuple[str, TokenArray, str | None]], set[str], int]:
    """Donors since the last call, all prompts that were split, and the largest batch."""
    host.side.wait_for_donors()
    seen = host.memory["fuzz"]
    donors, seen["donors"] = seen["donors"], []
    return donors, set(seen["split"]), seen["largest"]


def ended(host: Any, rid: str) -> tuple[list[tuple[int, Plan]], bool, int]:
    """A request's loads, whether its K/V was ever approximate, and how often it was retracted."""
    request = host.requests.get(rid)
    if request is None:  # it never ran
        return [], False, 0
    state = known_state(request)
    loads = host.memory["fuzz"]["loads"].get(rid, [])
    return loads, state is not None and state.tainted, int(request.retraction_count)


def is_idle(host: Any) -> bool:
    """Whether nothing runs or waits."""
    return host.idle()


def spoil(host: Any, rid: str) -> bool:
    """Give a loaded region other tokens' values; False if the request holds none."""
    request = host.requests.get(rid)
    state = None if request is None else known_state(request)
    load = None if state is None else state.handle.load
    if load is None or request.finished():
        return False
    for values in host.runner.token_to_kv_pool.v_buffer:
        values[load.slots] = values[load.slots].flip(0)
    return True


def left(host: Any) -> dict[str, int]:
    """What is not free although everything has ended and the tree is empty."""
    slots, rows = host.cache.token_to_kv_pool_allocator, host.runner.req_to_token_pool
    return {
        "slots of the pool": int(slots.size - slots.available_size()),
        "rows of requests": int(rows.size - rows.available_size()),
        "requests open in the ledger": host.side.provider.pipeline.ledger.totals().open_requests,
        "donors after the tree was emptied": host.side.provider.stats().donors,
    }
