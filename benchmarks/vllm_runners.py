"""Selects one of vLLM's two model runners and two schedulers for this process, even on a CPU.

vLLM's GPU defaults are the V2 runner and asynchronous scheduling; on CPUs it uses the V1 runner
and switches asynchronous scheduling off. Neither needs a GPU. V2's kernels are written in Triton,
whose interpreter runs anywhere. Asynchronous scheduling only means that a step is scheduled
before the last one's tokens are known, which does not depend on the device. Call `prepare` once,
before anything imports vLLM.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from enum import StrEnum
from typing import Any


class Runner(StrEnum):
    """vLLM's model runners."""

    V1 = "v1"
    V2 = "v2"


class Scheduling(StrEnum):
    """Whether a step is scheduled before the last one's tokens are known."""

    SYNC = "sync"
    ASYNC = "async"


def on_gpu() -> bool:
    """Whether vLLM will find a CUDA device here."""
    import torch

    return torch.cuda.is_available()


def prepare(runner: Runner, scheduling: Scheduling) -> None:
    """Choose for this process and for those that vLLM starts from it.

    Raises
    ------
    RuntimeError
        If vLLM is already imported, or V2 is requested on a CPU without Triton.
    """
    if "vllm" in sys.modules:
        raise RuntimeError("choose the runner before importing vLLM")
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1" if runner is Runner.V2 else "0"
    if on_gpu():
        return
    if runner is Runner.V2:
        _interpret_triton()
    if scheduling is Scheduling.ASYNC:
        _keep_asynchronous_scheduling()


def engine_options(scheduling: Scheduling) -> dict[str, Any]:
    """The matching engine options."""
    return {"async_scheduling": scheduling is Scheduling.ASYNC}


def _interpret_triton() -> None:
    """Make vLLM for CPUs accept Triton: it requires an active backend named "cpu"."""
    if importlib.util.find_spec("triton") is None:
        raise RuntimeError("vLLM's V2 runner on a CPU needs Triton: pip install triton==3.9.0")
    os.environ["TRITON_INTERPRET"] = "1"
    import triton.backends

    class Driver:
        @staticmethod
        def is_active() -> bool:
            return True

    class Backend:
        driver = Driver

    triton.backends.backends["cpu"] = Backend


def _keep_asynchronous_scheduling() -> None:
    """Restore what the CPU platform switches off."""
    from vllm.platforms.cpu import CpuPlatform

    original = CpuPlatform.check_and_update_config.__func__

    @functools.wraps(original)
    def keeping(cls: Any, vllm_config: Any) -> None:
        wanted = vllm_config.scheduler_config.async_scheduling
        original(cls, vllm_config)
        vllm_config.scheduler_config.async_scheduling = wanted

    CpuPlatform.check_and_update_config = classmethod(keeping)
