"""What a certificate needs from an engine, whichever it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from semblend.core.namespace import NONE
from semblend.quality.items import Item
from semblend.quality.measure import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredFacts:
    """What is measured, as the certificate names it."""

    engine: str
    version: str
    model: str
    """A name, for people."""
    fingerprint: str
    """Content hash of the weights; engines look certificates up by it."""
    dtype: str
    architecture: str
    """The model's class, as its config.json names it."""
    quantisation: str = NONE
    kv_format: str
    speculation: str = NONE
    """The drafter; "none" where nothing is drafted."""
    asked_at_load: Mapping[str, str] = field(default_factory=dict)
    """What engines compare with their own before they accept the certificate, in their words:
    `quantization`, `kv_format`, `speculation`; what is not here counts as "none"."""
    hardware: str
    versions: Mapping[str, str] = field(default_factory=dict)
    """Of other packages that take part."""
    method: str
    """How answers and distributions are compared with cold's."""
    left_out: tuple[str, ...] = ()
    """What could not be measured through this engine."""

    def to_dict(self) -> dict[str, Any]:
        """What the certificate holds, ready for JSON."""
        return {
            "name": self.engine,
            "version": self.version,
            "architecture": self.architecture,
            "quantisation": self.quantisation,
            "kv_format": self.kv_format,
            "speculation": self.speculation,
            "method": self.method,
            "left_out": list(self.left_out),
        }


Work = tuple[Item, tuple[str, ...]]
"""An item, and the policies to judge on it; "cold" is cold once more, the noise floor."""


class MeasuredEngine(Protocol):
    """An engine that answers items cold and, behind their donors, under named policies."""

    @property
    def facts(self) -> MeasuredFacts:
        """What it is."""
        ...

    @property
    def tokenizer(self) -> Any:
        """The model's own, with its chat template."""
        ...

    @property
    def batch(self) -> int:
        """Items that it likes to be given at once."""
        ...

    def measure(self, work: Sequence[Work], *, cold_right_only: bool = False) -> list[list[Record]]:
        """Records of each item, one a policy; none where the engine confirmed no reuse.

        With `cold_right_only`, an item that cold answers wrongly gives none either, and costs only
        cold's answer.
        """
        ...

    def close(self) -> None:
        """Free what it holds."""
        ...
