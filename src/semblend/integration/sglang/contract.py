"""What the backend relies on in SGLang's sources, asked of the installed ones.

Everything that the backend overrides, calls or reads and that has changed between releases is
listed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

from semblend.integration.asked_interfaces import differing, lacking, parameters

HOOKED = "sglang.srt.managers.tp_worker.TpModelWorker.forward_batch_generation"
"""The one function that is hooked."""

_OVERRIDDEN = {
    "match_prefix": ["params"],
    "init_load_back": ["params"],
    "load_back_is_cache_owned": [],
    "prefix_device_indices": ["req"],
    "checkpoint": ["req", "up_to"],
    "_apply_cache_action": ["action"],
    "claim_kv_row": ["req"],
    "on_release": ["req", "checkpointed"],
    "reset": [],
}
_CALLED = (
    "insert",
    "lock",
    "unlock",
    "root_node_handle",
    "evictable_size",
    "supports_prefix_sharing",
)
_REGISTRY = (
    "register_radix_cache_backend",
    "get_radix_cache_factory",
    "default_radix_cache_factory",
)
_REQUEST = (
    "skip_radix_cache_insert",
    "discard_output_reason",
    "cached_tokens_device",
    "owned_kv_len",
)
_BATCH = ("prefix_lens", "extend_lens", "req_pool_indices_cpu", "out_cache_loc")
_LOAD_FIELDS = ("req", "best_match_node", "host_hit_length")
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

    return lacking(registry, _REGISTRY)


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
    if "cache_class" not in parameters(registry.create_unified_radix_cache):
        problems.append("create_unified_radix_cache takes no cache_class")
    problems += differing(UnifiedRadixCache, _OVERRIDDEN)
    problems += lacking(UnifiedRadixCache, _CALLED)
    problems += lacking(MatchResult, _MATCH_FIELDS)
    if "device_indices" in MatchResult._fields:
        problems.append("MatchResult still carries device_indices: an older interface")
    return [*problems, *lacking(InitLoadBackParams, _LOAD_FIELDS)]


def _worker_problems() -> list[str]:
    from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
    from sglang.srt.managers.tp_worker import TpModelWorker
    from sglang.srt.model_executor.model_runner import ModelRunner

    problems = []
    if "self.prefill_cuda_graph_runner is not None" not in inspect.getsource(ModelRunner):
        problems.append("ModelRunner cannot be told to run without prefill graphs")
    if "batch" not in parameters(TpModelWorker.forward_batch_generation):
        problems.append(f"{HOOKED} takes no batch")
    problems += lacking(Req, _REQUEST, of_instances=True)
    return [*problems, *lacking(ScheduleBatch, _BATCH)]
