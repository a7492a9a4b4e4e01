"""The red team's findings for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

NOT_COVERED = (
    "Not covered: text unlike the workloads and the red team's grammar, text that depends on a "
    "change further away than the policy recomputes, donors written to do harm, and anything the "
    "model gets wrong when cold."
)
"""What a certificate does not cover, in a sentence."""


def said_of(redteam: Mapping[str, Any] | None) -> str:
    """A certificate's red-team result in a line."""
    if redteam is None:
        return "no red team"
    return (
        f"red team: {redteam['leaks']} of {redteam['items']:,} adversarial items to the donor's "
        f"fact (95 % upper bound {redteam['most_leaks']:.2%}), {redteam['lost']} lost"
    )


def find_rows(finds: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Signature, what happened, the right answer, warm's, and the donor's."""
    return [
        (
            str(find["signature"]),
            "leak" if find["leaked"] else "loss",
            str(find["right"]),
            str(find["warm"]),
            str(find["donors"]),
        )
        for find in finds
    ]


FIND_HEADINGS = ("structure", "", "right", "warm", "donor's")
