"""The embedded engine behind the seam: the lab, with whole distributions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from semblend import __version__
from semblend.quality.lab import Lab
from semblend.quality.measure import Record, measure
from semblend.quality.seam import MeasuredFacts, Work


class MeasuredEmbedded:
    """A lab that is there already; who made it closes it."""

    batch = 1

    def __init__(self, lab: Lab, *, hardware: str = "") -> None:
        self._lab = lab
        dtype = str(lab.model.kv_shape.dtype).removeprefix("torch.")
        self.facts = MeasuredFacts(
            engine="embedded",
            version=__version__,
            model=lab.model.name,
            fingerprint=lab.model.fingerprint,
            dtype=dtype,
            architecture=lab.model.architecture,
            kv_format=dtype,
            hardware=hardware or str(lab.model.device),
            versions={"torch": torch.__version__},
            method="whole distributions over cold's own answer",
        )

    @property
    def tokenizer(self) -> Any:
        """The model's."""
        return self._lab.model.tokenizer

    def measure(self, work: Sequence[Work], *, cold_right_only: bool = False) -> list[list[Record]]:
        """One item after another."""
        return [
            measure(self._lab, item, specs, cold_right_only=cold_right_only) for item, specs in work
        ]

    def close(self) -> None:
        """Close the lab."""
        self._lab.close()
