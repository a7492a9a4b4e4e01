"""SemBlend: reuse the K/V of documents an engine has already read, anywhere in the prompt.

The public API is small: build a :class:`SemBlendPipeline` from :class:`Settings`, register donors,
ask for plans. `docs/concepts.md` explains the terms.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from semblend.core.errors import SemBlendError
    from semblend.core.namespace import Namespace
    from semblend.core.outcomes import DeclineReason, Outcome
    from semblend.core.plan import Hole, Plan, Span, SpanKind
    from semblend.core.settings import Settings
    from semblend.pipeline import PipelineStats, SemBlendPipeline
    from semblend.planning.cost import CostModel
    from semblend.planning.matches import DonorMatch

__version__ = "0.4.0"

__all__ = [
    "CostModel",
    "DeclineReason",
    "DonorMatch",
    "Hole",
    "Namespace",
    "Outcome",
    "PipelineStats",
    "Plan",
    "SemBlendError",
    "SemBlendPipeline",
    "Settings",
    "Span",
    "SpanKind",
]

# Names load on first use: the rotary maths and kernels in `semblend.kv` must import on machines
# that have only torch and numpy.
_HOMES = {
    "CostModel": "planning.cost",
    "DeclineReason": "core.outcomes",
    "DonorMatch": "planning.matches",
    "Hole": "core.plan",
    "Namespace": "core.namespace",
    "Outcome": "core.outcomes",
    "PipelineStats": "pipeline",
    "Plan": "core.plan",
    "SemBlendError": "core.errors",
    "SemBlendPipeline": "pipeline",
    "Settings": "core.settings",
    "Span": "core.plan",
    "SpanKind": "core.plan",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'semblend' has no attribute {name!r}")
    return getattr(import_module(f"semblend.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
