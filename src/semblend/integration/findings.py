"""What a check of an installation came to: the words of `semblend doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """How one check came out."""

    OK = "ok"
    NOTE = "note"
    """Works, and there is something to know."""
    REFUSED = "refused"
    """K/V would not be loaded, or the engine would not start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One check and its outcome."""

    check: str
    verdict: Verdict
    detail: str
