"""A LoRA adapter that a request runs with, as both sides of an engine know it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraAdapter:
    """One adapter. K/V computed with it serves requests with the same one and no others."""

    name: str
    """What its users call it."""
    number: int
    """What the engine calls it."""
    path: str
    """Where the engine loads it from, as the engine was told."""
    weights: str
    """A content hash of its files."""
    fused_experts: bool = False
    """Whether the weights of its experts are stored as one tensor a layer."""

    @property
    def part(self) -> str:
        """Its part of a namespace.

        The name counts too: two names of one file share nothing, which costs a donor and rules
        out that an engine that confused them is believed.
        """
        return f"lora:{self.weights}:{self.name}"
