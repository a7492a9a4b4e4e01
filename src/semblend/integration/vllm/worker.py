"""`--worker-cls semblend.integration.vllm.worker.SemBlendWorker`.

vLLM's connector interface gives a worker-side connector neither the model nor news about
changes to it between steps. A worker class is a documented setting. This one is vLLM's own
worker for the platform; it passes its runner to the connector once the K/V cache exists, and
reports weight changes and when the cache is about to be unmapped.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group
from vllm.platforms import current_platform

from semblend.core.settings import Settings
from semblend.core.tokens import as_token_array
from semblend.integration.refusals import UnsupportedEngineError
from semblend.integration.vllm.neighbours import children
from semblend.integration.vllm.support import offloading_refusals

if TYPE_CHECKING or current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker as PlatformWorker
else:
    from vllm.v1.worker.gpu_worker import Worker as PlatformWorker

logger = logging.getLogger("vllm.semblend")

CHANGING_METHODS = (
    "load_model",
    "load_weights",
    "reload_weights",
    "reset_weights",
    "start_weight_update",
    "update_weights",
    "finish_weight_update",
)
"""Methods of vLLM's workers, 0.30 to 0.32; not every version and platform has them all."""


class SemBlendWorker(PlatformWorker):
    """vLLM's worker, which also passes its model runner to the connector."""

    hands_model_to_connector = True

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Create vLLM's worker.

        Raises
        ------
        UnsupportedEngineError
            If vLLM would serve without the connector this class is there for, with
            SEMBLEND_STRICT_START.
        """
        super().__init__(*arguments, **options)
        size = getattr(self.cache_config, "kv_offloading_size", None)
        if refusals := offloading_refusals(size):
            if Settings.from_env().strict_start:
                raise UnsupportedEngineError(refusals)
            logger.warning("SemBlend does nothing: %s", "; ".join(map(str, refusals)))

    def initialize_from_config(self, kv_cache_config: Any) -> None:
        """Allocate the K/V cache as usual, then pass the runner on."""
        super().initialize_from_config(kv_cache_config)
        _tell("bind_model_runner", self.model_runner)

    def compile_or_warm_up_model(self) -> Any:
        """Warm up as usual; the engine is then as fast as it will be."""
        times = super().compile_or_warm_up_model()
        _tell("engine_ready")
        return times

    def kv_of_donor(self, tokens: list[int]) -> Any:
        """This rank's K/V of a prompt that was kept; `semblend certify` asks all ranks for it."""
        return _tell("kv_of_donor", as_token_array(tokens))

    def sleep(self, level: int = 1) -> None:
        """Sleep once nobody reads the K/V cache; level 2 loses the weights."""
        _tell("before_unmapping")
        try:
            super().sleep(level)
        finally:
            if level >= 2:
                _tell("weights_changed", f"sleep at level {level}")


def _tell(method: str, *arguments: Any) -> Any:
    """Call the connector, where ours is there, alone or among others; what it returns, or None."""
    if not has_kv_transfer_group():
        return None
    for connector in children(get_kv_transfer_group()):
        told = getattr(connector, method, None)
        if told is not None:
            return told(*arguments)
    return None


def _changing(name: str) -> Callable[..., Any]:
    """Wrap a vLLM method that changes weights; even a failed one may have changed some."""
    original = getattr(PlatformWorker, name)

    @functools.wraps(original)
    def method(self: Any, *arguments: Any, **options: Any) -> Any:
        try:
            return original(self, *arguments, **options)
        finally:
            _tell("weights_changed", name)

    return method


def _unmapping(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a vLLM method that releases the K/V cache's memory."""

    @functools.wraps(original)
    def method(self: Any, *arguments: Any, **options: Any) -> Any:
        _tell("before_unmapping")
        return original(self, *arguments, **options)

    return method


for _name in CHANGING_METHODS:
    if hasattr(PlatformWorker, _name):
        setattr(SemBlendWorker, _name, _changing(_name))
if hasattr(PlatformWorker, "discard"):  # since vLLM 0.32
    SemBlendWorker.discard = _unmapping(PlatformWorker.discard)
