"""What adapters say about engines they were not proven with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from semblend.core.errors import UnsupportedModelError

VERIFIED_ARCHITECTURES = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
)
"""Run by the tests, all but Mistral (which engines run as Llama)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """One reason not to load donor K/V in this engine."""

    feature: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.feature} ({self.remedy})" if self.remedy else self.feature


class UnsupportedEngineError(UnsupportedModelError):
    """The engine is set up in a way this adapter was not proven with; names all of it."""

    def __init__(self, refusals: Iterable[Refusal]) -> None:
        self.refusals = tuple(refusals)
        listed = "; ".join(map(str, self.refusals))
        super().__init__(
            f"SemBlend cannot load K/V in this engine: {listed}. "
            f"Mode discovery_only runs with most of these."
        )


def architecture_refusals(hf_config: Any, *, unverified: bool) -> list[Refusal]:
    """Nothing for an architecture that was seen to work, or where any may be tried."""
    names = list(getattr(hf_config, "architectures", None) or [])
    if unverified or set(names) & set(VERIFIED_ARCHITECTURES):
        return []
    return [
        Refusal(
            feature=f"architecture {', '.join(names) or 'unknown'}",
            remedy="never seen to work; unverified_architectures=true tries it",
        )
    ]
