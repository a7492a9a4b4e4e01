"""What this adapter relies on in TensorRT-LLM's connector interface, asked of what is installed.

Methods that are optional upstream are supported by presence and not asked for here. One that
has become abstract is a problem all the same: a class without it cannot be made.
"""

from __future__ import annotations

from typing import Any

from semblend.integration.asked_interfaces import parameters, unimplemented

REQUIRED: dict[str, dict[str, tuple[str, ...]]] = {
    "KvCacheConnectorScheduler": {
        "__init__": ("llm_args",),
        "get_num_new_matched_tokens": ("request", "num_computed_tokens"),
        "update_state_after_alloc": ("request", "block_ids"),
        "build_connector_meta": ("scheduler_output",),
        "request_finished": ("request", "cache_block_ids"),
    },
    "KvCacheConnectorWorker": {
        "__init__": ("llm_args",),
        "bind_connector_meta": ("metadata",),
        "register_kv_caches": ("kv_cache_tensor",),
        "start_load_kv": ("stream",),
        "wait_for_layer_load": ("layer_idx", "stream"),
        "save_kv_layer": ("layer_idx", "stream"),
        "wait_for_save": ("stream",),
        "get_finished": ("finished_gen_req_ids", "started_loading_req_ids"),
    },
}
IMPLEMENTED: dict[str, tuple[str, ...]] = {
    "KvCacheConnectorScheduler": (
        "request_finished_by_layer_group",
        "update_state_after_alloc_by_layer_group",
        "wait_for_initialization",
    ),
    "KvCacheConnectorWorker": ("register_kv_cache_layout",),
}
"""Newer methods this adapter has for the versions that call them. Others are left to upstream's
defaults: most belong to KVCacheManagerV2, which is refused."""


def contract_problems(module: Any) -> list[str]:
    """What a module's interface has otherwise than this adapter relies on, in words."""
    problems: list[str] = []
    for name, methods in REQUIRED.items():
        kind = getattr(module, name, None)
        if kind is None:
            problems.append(f"{name} is missing")
            continue
        for method, expected in methods.items():
            function = getattr(kind, method, None)
            if function is None:
                problems.append(f"{name}.{method} is missing")
                continue
            found = tuple(parameters(function)[1:])
            if found != expected:
                problems.append(f"{name}.{method}{found}: {expected} expected")
        problems += unimplemented(kind, {*methods, *IMPLEMENTED[name]}.__contains__)
    return problems
