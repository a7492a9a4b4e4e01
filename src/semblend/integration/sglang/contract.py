"""What the backend relies on in SGLang's sources, asked of the installed ones.

A version number says what was released; signatures say what is there. Everything that
the backend overrides, calls or reads and that has changed between releases is listed.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

HOOKED = "sglang.srt.managers.tp_worker.TpModelWorker.forward_batch_generation"
"""The one function that is hooked."""

_OVERRIDDEN = {
    "match_prefix": ["params"],
    "init_load_back": ["params"],
    "load_back_is_cache_owned": [],
    "prefix_device_indices": ["req"],
    "checkpoint": ["req", "up_to"],
    "_apply_cache_action": ["action"],
    "on_release": ["req", "checkpointed"],
    "reset": [],
}
_CALLED = ("lock", "unlock", "root_node_handle", "evictable_size", "supports_prefix_sharing")
_MATCH_FIELDS = ("device_prefix_len", "last_device_node", "best_match_node", "host_hit_length")


def contract_problems() -> list[str]:
    """Everything that is not as this adapter knows it; empty when all is."""
    return [*registration_problems(), *discovery_problems(), *loading_problems()]


def registration_problems() -> list[str]:
    """Why SGLang cannot be given a backend at all, nor make its own cache for us."""
    return _asked(_registry_problems)


def discovery_problems() -> list[str]:
    """Why prompts cannot even be looked up beside SGLang's tree."""
    return _asked(_tree_problems)


def loading_problems() -> list[str]:
    """Why nothing can be loaded, though prompts can be looked up."""
    return [*_asked(_hook_problems), *_asked(_worker_problems)]


def _asked(questions: Callable[[], list[str]]) -> list[str]:
    try:
        return questions()
    except (ImportError, AttributeError) as error:
        return [f"SGLang cannot be asked: {error}"]


def _registry_problems() -> list[str]:
    from sglang.srt.mem_cache import registry

    return [
        f"sglang.srt.mem_cache.registry has no {name}"
        for name in (
            "register_radix_cache_backend",
            "get_radix_cache_factory",
            "default_radix_cache_factory",
        )
        if not hasattr(registry, name)
    ]


def _hook_problems() -> list[str]:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    if not hasattr(HookRegistry, "register") or not hasattr(HookType, "AROUND"):
        return ["HookRegistry has no AROUND hooks"]
    return []


def _tree_problems() -> list[str]:
    from sglang.srt.mem_cache import registry
    from sglang.srt.mem_cache.base_prefix_cache import InitLoadBackParams, MatchResult
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

    problems = []
    if "cache_class" not in _parameters(registry.create_unified_radix_cache):
        problems.append("create_unified_radix_cache takes no cache_class")
    for name, expected in _OVERRIDDEN.items():
        method = getattr(UnifiedRadixCache, name, None)
        if method is None:
            problems.append(f"UnifiedRadixCache has no {name}")
        elif not set(expected) <= set(_parameters(method)):
            problems.append(f"UnifiedRadixCache.{name} takes {_parameters(method)}")
    problems += [
        f"UnifiedRadixCache has no {name}"
        for name in _CALLED
        if not hasattr(UnifiedRadixCache, name)
    ]
    problems += [
        f"MatchResult has no {name}" for name in _MATCH_FIELDS if name not in MatchResult._fields
    ]
    if "device_indices" in MatchResult._fields:
        problems.append("MatchResult still carries device_indices: an older interface")
    named = {field.name for field in dataclasses.fields(InitLoadBackParams)}
    problems += [
        f"InitLoadBackParams has no {name}"
        for name in ("req", "best_match_node", "host_hit_length")
        if name not in named
    ]
    return problems


def _worker_problems() -> list[str]:
    from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
    from sglang.srt.managers.tp_worker import TpModelWorker
    from sglang.srt.model_executor.model_runner import ModelRunner

    problems = []
    if "self.prefill_cuda_graph_runner is not None" not in inspect.getsource(ModelRunner):
        problems.append("ModelRunner cannot be told to run without prefill graphs")
    if "batch" not in _parameters(TpModelWorker.forward_batch_generation):
        problems.append(f"{HOOKED} takes no batch")
    # Instance attributes: only the source says that they exist.
    source = inspect.getsource(Req)
    problems += [
        f"Req has no {name}"
        for name in ("skip_radix_cache_insert", "discard_output_reason", "cached_tokens_device")
        if f"self.{name}" not in source
    ]
    fields = {field.name for field in dataclasses.fields(ScheduleBatch)}
    problems += [
        f"ScheduleBatch has no {name}"
        for name in ("prefix_lens", "extend_lens", "req_pool_indices_cpu", "out_cache_loc")
        if name not in fields
    ]
    return problems


def _parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)
