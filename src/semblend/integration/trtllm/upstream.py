"""What is taken from TensorRT-LLM, from wherever this version of it keeps it.

The connector's base classes have moved once; both places are tried. Without
TensorRT-LLM plain stand-ins take their place, so that the adapter can be imported,
judged and tested: they say what the real ones say, that metadata is bound and read.
"""

from __future__ import annotations

import importlib
import logging
from typing import Any

logger = logging.getLogger("semblend.trtllm")

CONNECTOR_MODULES = (
    "tensorrt_llm._torch.pyexecutor.connectors.kv_cache_connector",
    "tensorrt_llm._torch.pyexecutor.kv_cache_connector",
)
"""Newer first."""


class _Scheduler:
    """Stands in for KvCacheConnectorScheduler."""

    def __init__(self, llm_args: Any) -> None:
        self._llm_args = llm_args


class _Worker:
    """Stands in for KvCacheConnectorWorker."""

    def __init__(self, llm_args: Any) -> None:
        self._llm_args = llm_args
        self._metadata: object = None

    def bind_connector_meta(self, metadata: object) -> None:
        """This step's orders."""
        self._metadata = metadata

    def get_connector_meta(self) -> object:
        """The orders bound last."""
        return self._metadata


def connector_module() -> Any | None:
    """The upstream module that defines the interface, or None where there is none."""
    for name in CONNECTOR_MODULES:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if not name.startswith(error.name or "\0"):
                raise  # TensorRT-LLM is here and one of its own parts is missing
    return None


def base_classes() -> tuple[type[Any], type[Any]]:
    """The scheduler's and the worker's base class."""
    module = connector_module()
    if module is None:
        return _Scheduler, _Worker
    return module.KvCacheConnectorScheduler, module.KvCacheConnectorWorker


def rank() -> int:
    """This process's rank; 0 where there is no TensorRT-LLM."""
    utilities = _utilities()
    return 0 if utilities is None else int(utilities.mpi_rank())


def all_gather(value: object) -> list[Any]:
    """What every rank says, in order of rank. All ranks call it at the same point."""
    utilities = _utilities()
    if utilities is None:
        return [value]
    gathered: list[Any] = utilities.mpi_allgather(value)
    return gathered


def collectives_by_mpi() -> bool:
    """Whether ranks speak by MPI, which is all this adapter knows."""
    utilities = _utilities()
    if utilities is None:
        return False
    disabled = getattr(utilities, "mpi_disabled", None)
    return disabled is None or not disabled()


def cache_salt_id(cache_salt: str | None) -> int | None:
    """The number TensorRT-LLM knows a salt by, or None where it has none."""
    if cache_salt is None:
        return None
    for module, name in (
        ("tensorrt_llm.inputs.utils", "get_cache_salt_id"),
        ("tensorrt_llm.inputs", "get_cache_salt_id"),
        ("tensorrt_llm.runtime.kv_cache_hash", "get_cache_salt_id"),
    ):
        try:
            return int(getattr(importlib.import_module(module), name)(cache_salt))
        except (ImportError, AttributeError):
            continue
    return None


def _utilities() -> Any | None:
    try:
        return importlib.import_module("tensorrt_llm._utils")
    except ModuleNotFoundError:
        return None
