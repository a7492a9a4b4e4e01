"""Blocks: which of a recipient's blocks appear in donors, and which a proposal covers.

Only full blocks count; the tokens of an unfinished last block belong to none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from sembench.errors import PlannerError

TokenArray: TypeAlias = npt.NDArray[np.uint32]
BoolArray: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposedSpan:
    """A planner's proposal to copy donor[donor_start:+length] to target[target_start:+length]."""

    donor_id: str
    donor_start: int
    target_start: int
    length: int


def block_hash(tokens: Sequence[int]) -> str:
    """The public hash of a block: 32 hex digits of sha256 over little-endian u32 ids."""
    return hashlib.sha256(np.asarray(tokens, dtype="<u4").tobytes()).hexdigest()[:32]


def exact_block_mask(recipient: TokenArray, donors: Iterable[TokenArray], size: int) -> BoolArray:
    """Mark the recipient's full blocks that also appear as a full block in any donor.

    Compares the bytes that :func:`block_hash` hashes: same answer, no collisions.
    Returns one flag per full block of the recipient, shape [len(recipient) // size].
    """
    pool = {block for donor in donors for block in _blocks(donor, size)}
    return np.fromiter((block in pool for block in _blocks(recipient, size)), dtype=np.bool_)


def _blocks(tokens: TokenArray, size: int) -> list[bytes]:
    data = np.ascontiguousarray(tokens, dtype="<u4").tobytes()
    width = 4 * size
    return [data[start : start + width] for start in range(0, len(data) - width + 1, width)]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanBlocks:
    """What a proposal covers, per full block of the recipient."""

    candidate: BoolArray
    """Every position of the block is copied from some donor."""
    eligible: BoolArray
    """Every position is copied from contiguous positions of one donor."""
    mismatched_tokens: int
    """Copied positions where donor and recipient tokens differ; 0 for a truthful planner."""


def plan_blocks(
    recipient: TokenArray,
    donors: dict[str, TokenArray],
    spans: Sequence[ProposedSpan],
    size: int,
) -> PlanBlocks:
    """Evaluate a proposal. If spans overlap in the recipient, the first one counts.

    Raises
    ------
    PlannerError
        If a span names an unknown donor or lies outside the donor or recipient.
    """
    length = len(recipient)
    numbers = {donor_id: index for index, donor_id in enumerate(donors)}
    source = np.full(length, -1, dtype=np.int64)
    position = np.full(length, -1, dtype=np.int64)
    mismatched = 0
    for index, span in enumerate(spans):
        _check_span(span, index, donors, length)
        target = np.arange(span.target_start, span.target_start + span.length)
        free = source[target] < 0
        target, copied = target[free], (span.donor_start + np.arange(span.length))[free]
        source[target] = numbers[span.donor_id]
        position[target] = copied
        mismatched += int((donors[span.donor_id][copied] != recipient[target]).sum())
    full = length // size * size
    sources = source[:full].reshape(-1, size)
    candidate: BoolArray = np.all(sources >= 0, axis=1)
    one_donor = np.all(sources == sources[:, :1], axis=1)
    contiguous = np.all(np.diff(position[:full].reshape(-1, size), axis=1) == 1, axis=1)
    return PlanBlocks(
        candidate=candidate,
        eligible=candidate & one_donor & contiguous,
        mismatched_tokens=mismatched,
    )


def _check_span(
    span: ProposedSpan, index: int, donors: dict[str, TokenArray], recipient_tokens: int
) -> None:
    where = f"spans[{index}]"
    if span.donor_id not in donors:
        raise PlannerError(f"{where}.donor_id: donor {span.donor_id!r} is not registered")
    if span.length < 1:
        raise PlannerError(f"{where}.length: expected at least 1, got {span.length}")
    donor_tokens = len(donors[span.donor_id])
    if not 0 <= span.donor_start <= donor_tokens - span.length:
        raise PlannerError(
            f"{where}: [{span.donor_start}, {span.donor_start + span.length}) lies outside "
            f"the donor's {donor_tokens} tokens"
        )
    if not 0 <= span.target_start <= recipient_tokens - span.length:
        raise PlannerError(
            f"{where}: [{span.target_start}, {span.target_start + span.length}) lies outside "
            f"the recipient's {recipient_tokens} tokens"
        )


def block_strip(exact: BoolArray, plan: PlanBlocks | None) -> str:
    """One letter per block, saying what covered it.

    ``.`` nothing, ``x`` exact only, ``c`` candidate only, ``s`` eligible only, and
    ``b`` exact and also candidate or eligible.
    """
    nothing = np.zeros_like(exact)
    candidate = nothing if plan is None else plan.candidate
    eligible = nothing if plan is None else plan.eligible
    codes = np.select(
        [exact & (candidate | eligible), exact, eligible, candidate],
        [ord("b"), ord("x"), ord("s"), ord("c")],
        default=ord("."),
    )
    return codes.astype(np.uint8).tobytes().decode("ascii")
