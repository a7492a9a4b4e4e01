"""Test-only stand-in for SGLang's compiled kernels: every call raises.

On a CPU without AMX, SGLang 0.5.23 computes with plain torch, but it imports names from
`sgl_kernel` all the same. This module has every name and none of the functions: a test
that passes has called none of them. Found through PYTHONPATH by the tests alone.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, ClassVar, NoReturn

__version__ = "0.0.0+stand-in"


class _Missing:
    """A kernel that is not here."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"{self._name}: the tests' stand-in has no kernels")

    def __getattr__(self, name: str) -> _Missing:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Missing(f"{self._name}.{name}")


class _StandIn(ModuleType):
    """A module (and any submodule) whose every name is a missing kernel."""

    __path__: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Missing(f"{self.__name__}.{name}")


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return _Missing(f"sgl_kernel.{name}")


for _submodule in ("flash_attn", "flash_mla", "kvcacheio", "scalar_type", "quantization", "utils"):
    sys.modules.setdefault(f"{__name__}.{_submodule}", _StandIn(f"{__name__}.{_submodule}"))
