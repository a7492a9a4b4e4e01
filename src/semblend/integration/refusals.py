"""What adapters refuse in engines they were not proven with.

Each entry is a feature that changes what a span's K/V means to segmented prefill, or that
nobody has tested with it. Refusing costs a cold prefill; not refusing costs wrong answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

from semblend.core.errors import UnsupportedModelError, UnsupportedRotaryError
from semblend.integration.probing import UNPROBED

Features: TypeAlias = tuple[tuple[str, Callable[[Any], Any]], ...]
"""Feature names, and how to tell from an engine's configuration that one is in use."""

VERIFIED_ARCHITECTURES = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
)
"""Tested, except Mistral (which engines run as Llama)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """One reason not to load donor K/V in this engine."""

    feature: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.feature} ({self.remedy})" if self.remedy else self.feature


class UnsupportedEngineError(UnsupportedModelError):
    """The engine's setup was not proven with this adapter; the message names everything."""

    def __init__(self, refusals: Iterable[Refusal]) -> None:
        self.refusals = tuple(refusals)
        listed = "; ".join(map(str, self.refusals))
        super().__init__(
            f"SemBlend cannot load K/V in this engine: {listed}. "
            f"Mode discovery_only works with most of these."
        )


def architecture_refusals(hf_config: Any, *, unverified: bool) -> list[Refusal]:
    """Empty for a tested architecture, or if any may be tried."""
    names = list(getattr(hf_config, "architectures", None) or [])
    if unverified or set(names) & set(VERIFIED_ARCHITECTURES):
        return []
    return [
        Refusal(
            feature=f"architecture {', '.join(names) or 'unknown'}",
            remedy="not tested; unverified_architectures=true tries it",
        )
    ]


def refused_features(features: Features, config: Any) -> list[Refusal]:
    """One refusal per feature in use, in the order of the list."""
    used = dict.fromkeys(name for name, in_use in features if in_use(config))
    return [Refusal(feature=name) for name in used]


def stated(name: str) -> Callable[[Any], Any]:
    """The value of an engine argument; None if this version has no such argument."""
    return lambda arguments: getattr(arguments, name, None)


def more_than_one(name: str) -> Callable[[Any], bool]:
    """Whether a number of ranks, beams or the like is above one."""
    return lambda arguments: int(getattr(arguments, name, 1) or 1) > 1


def policy_refusals(spec: str, can_run: Callable[[str], bool]) -> list[Refusal]:
    """Empty for a recompute policy that gets the probe it needs."""
    if can_run(spec):
        return []
    return [Refusal(feature=f"recompute policy {spec}", remedy=f"it {UNPROBED}")]


def rotary_refusals(text_config: Any) -> list[Refusal]:
    """Empty for rotary positions whose K can be moved."""
    from semblend.kv.rotary_spec import RotarySpec

    try:
        RotarySpec.from_config(text_config)
    except UnsupportedRotaryError as error:
        return [Refusal(feature=f"rotary positions: {error}")]
    return []
