"""The embedded engine: transformers models with segmented prefill, in this process.

`EmbeddedEngine` is imported on first use because it needs torch. `semblend.engine.api` and
`EngineOptions` do not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from semblend.engine.options import EngineOptions

if TYPE_CHECKING:
    from semblend.engine.engine import EmbeddedEngine

__all__ = ["EmbeddedEngine", "EngineOptions"]


def __getattr__(name: str) -> Any:
    if name != "EmbeddedEngine":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from semblend.engine.engine import EmbeddedEngine
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "transformers", "safetensors"):
            raise
        from semblend.core.errors import MissingExtraError

        raise MissingExtraError(
            package=error.name, extra="engine", purpose="the embedded engine"
        ) from error
    return EmbeddedEngine
