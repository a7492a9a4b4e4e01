"""How much each layer's K/V suffers from reuse: a measured curve, never an assumption.

Published systems assume that the first and last layers are the sensitive ones (a
"bathtub"). No independent source supports that, and the reference model shows another
shape, so a profile exists only where it was measured for the model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from semblend.core.errors import SerialisationError
from semblend.core.json_text import parse_json

PROFILE_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerProfile:
    """Mean relative deviation of reused from cold K/V per layer, for one model.

    >>> LayerProfile(model="m", deviation=(0.0, 0.3, 0.1), items=8).sensitive(0.2)
    (False, True, False)
    """

    model: str
    deviation: tuple[float, ...]
    """One value a layer, relative (0 = identical)."""
    items: int
    """Prompts the curve is the mean of."""

    def __post_init__(self) -> None:
        if not self.deviation or self.items < 1:
            raise SerialisationError("layer profile: at least one layer and one item expected")
        if any(not 0.0 <= value < float("inf") for value in self.deviation):
            raise SerialisationError("layer profile: deviations are finite and not negative")

    def sensitive(self, threshold: float) -> tuple[bool, ...]:
        """Which layers deviate by more than `threshold`: a layer recompute mask."""
        return tuple(value > threshold for value in self.deviation)

    def to_json(self) -> str:
        """JSON that :meth:`from_json` reads back."""
        return json.dumps(
            {
                "version": PROFILE_VERSION,
                "model": self.model,
                "items": self.items,
                "deviation": list(self.deviation),
            },
            sort_keys=True,
        )

    @classmethod
    def from_json(cls, text: str) -> LayerProfile:
        """Read a profile back; anything else than a valid one is a SerialisationError."""
        try:
            data: Mapping[str, Any] = parse_json(text)
            if data["version"] != PROFILE_VERSION:
                raise SerialisationError(f"layer profile version {data['version']!r}")
            return cls(
                model=str(data["model"]),
                deviation=tuple(float(value) for value in data["deviation"]),
                items=int(data["items"]),
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise SerialisationError(f"not a layer profile: {error}") from error


def mean_profile(model: str, curves: Sequence[Sequence[float]]) -> LayerProfile:
    """Average the per-layer deviations measured on several prompts."""
    if not curves or len({len(curve) for curve in curves}) != 1:
        raise SerialisationError("layer profile: curves of one length each expected")
    return LayerProfile(
        model=model,
        deviation=tuple(sum(column) / len(curves) for column in zip(*curves, strict=True)),
        items=len(curves),
    )
