"""Which of vLLM's two model runners and two schedulers this process uses, on a CPU as well.

vLLM's defaults on a GPU are the V2 runner and asynchronous scheduling; for CPUs it takes the V1
runner and switches asynchronous scheduling off. Neither needs a GPU. V2's kernels are written in
Triton, whose interpreter runs them anywhere; what asynchronous scheduling is, a step that is
scheduled before the last one's tokens are known, has nothing to do with the device. `prepare` is
called once, before anything imports vLLM.
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
    """Choose for the whole process, and for those that vLLM starts from it.

    Raises
    ------
    RuntimeError
        If vLLM is imported already, or V2 is asked for on a CPU without Triton.
    """
    if "vllm" in sys.modules:
        raise RuntimeError("the runner is chosen before vLLM is imported")
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1" if runner is Runner.V2 else "0"
    if on_gpu():
        return
    if runner is Runner.V2:
        _interpret_triton()
    if scheduling is Scheduling.ASYNC:
        _keep_asynchronous_scheduling()


def engine_options(scheduling: Scheduling) -> dict[str, Any]:
    """What the engine is told besides."""
    return {"async_scheduling": scheduling is Scheduling.ASYNC}


def _interpret_triton() -> None:
    """Let vLLM for CPUs take Triton: it asks for a backend named "cpu" that is active."""
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
    """Put back what the CPU platform switches off."""
    from vllm.platforms.cpu import CpuPlatform

    original = CpuPlatform.check_and_update_config.__func__

    @functools.wraps(original)
    def keeping(cls: Any, vllm_config: Any) -> None:
        wanted = vllm_config.scheduler_config.async_scheduling
        original(cls, vllm_config)
        vllm_config.scheduler_config.async_scheduling = wanted

    CpuPlatform.check_and_update_config = classmethod(keeping)
