"""The staged ladder: segmented reuse with only an engine's public API.

Without access to an engine's model we cannot compute holes in our own pass, but ordinary
requests can: submit the prompt up to the end of the first hole under a private cache salt,
then up to the end of the second, and so on. Each rung finds the one below it in the engine's
exact prefix cache, the connector supplies the span that follows, and the engine's own forward
computes the hole. The last rung is the prompt itself. Nothing is contaminated, because
everything is under a salt that no other request has.

Engines cache whole blocks, so a rung must end on a block boundary: every hole is widened to
the next one (the first tokens of the span after it are computed). Rungs are values, made by
:func:`rungs_of`; the connector keeps them in a :class:`LadderBook`, and a client climbs them
with :func:`climb`.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np

from semblend.core.errors import PlanError, RequestError
from semblend.core.plan import Plan, Span
from semblend.core.tokens import TokenArray

LADDER_MARK = "semblend-ladder:"
"""Precedes the ladder's id in a rung's cache salt."""
SALT_MARK = f"|{LADDER_MARK}"
"""The same, after a user's own salt (which may be empty)."""
PROMPT_KEY = "ladder_prompt"
"""The engine parameter in which the first rung carries the whole prompt's token ids."""
ENDS_KEY = "ladder_ends"
"""The field of the engine's answer that lists the ends of the rungs to climb."""

Reply = TypeVar("Reply")


# -- salts ---------------------------------------------------------------------------


def new_salt(user_salt: str | None) -> str:
    """A private cache salt for one ladder of a user with this salt.

    It contains the user's salt. A caller who knows that salt could have used it directly, so a
    ladder reaches no donors that an ordinary request could not.
    """
    before = LADDER_MARK if user_salt is None else user_salt + SALT_MARK
    return before + secrets.token_hex(16)


def split_salt(cache_salt: str | None) -> tuple[str | None, str | None]:
    """The user's own salt and the ladder's id; the id is None for an ordinary request."""
    if cache_salt is None:
        return None, None
    user_salt, mark, ladder_id = cache_salt.rpartition(SALT_MARK)
    if mark:
        return user_salt, ladder_id
    if cache_salt.startswith(LADDER_MARK):
        return None, cache_salt.removeprefix(LADDER_MARK)
    return cache_salt, None


# -- rungs ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One request of a ladder: the prompt up to `end`.

    Tokens [0, start) come from the rung below, `spans` (contiguous from start on) from
    donors. The rest up to `end` is the hole that the engine computes.
    """

    start: int
    end: int
    spans: tuple[Span, ...] = ()
    """What the connector supplies; empty for a first rung that is all hole."""


def rungs_of(plan: Plan, block_size: int) -> tuple[Rung, ...]:
    """The rungs that carry out a plan; the last one is the prompt itself.

    A span shorter than the block in which its hole ends becomes part of the hole.
    """
    if block_size < 1:
        raise PlanError(f"block_size: expected 1 or more, got {block_size}")
    rungs: list[Rung] = []
    base = plan.exact_tokens // block_size * block_size
    spans: list[Span] = []
    for copy in plan.copies:
        if spans and copy.target_start == spans[-1].target_end:
            spans.append(copy)
            continue
        end = -(-copy.target_start // block_size) * block_size
        kept = copy.clipped(end, copy.target_end)
        if kept is None:
            continue
        if end > base:
            rungs.append(Rung(start=base, end=end, spans=tuple(spans)))
            base = end
        spans = [kept]
    if spans:
        rungs.append(Rung(start=base, end=plan.prompt_tokens, spans=tuple(spans)))
    return tuple(rungs)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LadderPlan:
    """A plan as a ladder, kept by the connector while it is climbed."""

    plan: Plan
    tokens: TokenArray
    """The whole prompt; a rung that is not a prefix of it belongs to another ladder."""
    rungs: tuple[Rung, ...]

    @classmethod
    def of(cls, plan: Plan, tokens: TokenArray, block_size: int) -> LadderPlan | None:
        """The ladder that carries out a plan; None if there is nothing to gain."""
        rungs = rungs_of(plan, block_size) if plan.executable else ()
        return cls(plan=plan, tokens=tokens, rungs=rungs) if rungs else None

    @property
    def ends(self) -> tuple[int, ...]:
        """Ends of the rungs below the prompt itself."""
        return tuple(rung.end for rung in self.rungs[:-1])

    @property
    def supplied_tokens(self) -> int:
        """Tokens that donors supply over the whole ladder."""
        return sum(span.length for rung in self.rungs for span in rung.spans)

    def supply(self, prompt: TokenArray, computed_tokens: int) -> tuple[Span, ...]:
        """What to supply to a rung with this prompt, given `computed_tokens`."""
        size = len(prompt)
        rung = next((rung for rung in self.rungs if rung.end >= size), None)
        if rung is None or not rung.spans or rung.spans[0].target_start > computed_tokens:
            return ()
        if not np.array_equal(prompt, self.tokens[:size]):
            return ()
        clipped = (span.clipped(computed_tokens, size - 1) for span in rung.spans)
        return tuple(span for span in clipped if span is not None)

    def rung_plan(
        self, prompt: TokenArray, computed_tokens: int, *, block_size: int = 1
    ) -> Plan | None:
        """The plan of one rung: no holes, spans from `computed_tokens` on, whole blocks."""
        spans = self.supply(prompt, computed_tokens)
        if not spans:
            return None
        end = spans[-1].target_end // block_size * block_size
        clipped = (span.clipped(computed_tokens, end) for span in spans)
        kept = tuple(span for span in clipped if span is not None)
        if not kept:
            return None
        return replace(
            self.plan,
            prompt_tokens=len(prompt),
            spans=kept,
            recompute=(),
            end=end,
            exact_tokens=computed_tokens,
        )


class LadderBook:
    """Ladders being climbed, by id. Bounded: the oldest are dropped."""

    def __init__(self, limit: int = 1024) -> None:
        self._limit = limit
        self._ladders: OrderedDict[str, LadderPlan] = OrderedDict()
        self._supplied: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._ladders)

    def open(self, ladder_id: str, ladder: LadderPlan) -> None:
        """Keep a ladder until :meth:`close`."""
        self._ladders[ladder_id] = ladder
        self._ladders.move_to_end(ladder_id)
        self._supplied[ladder_id] = 0
        while len(self._ladders) > self._limit:
            oldest, _ = self._ladders.popitem(last=False)
            del self._supplied[oldest]

    def get(self, ladder_id: str) -> LadderPlan | None:
        """The ladder with that id, if still kept."""
        return self._ladders.get(ladder_id)

    def supplied(self, ladder_id: str, tokens: int) -> None:
        """A rung of this ladder received `tokens` of donor K/V."""
        if ladder_id in self._supplied:
            self._supplied[ladder_id] += tokens

    def close(self, ladder_id: str) -> int:
        """Drop a ladder; return the tokens donors supplied to all of it."""
        self._ladders.pop(ladder_id, None)
        return self._supplied.pop(ladder_id, 0)


# -- climbing ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RungReply(Generic[Reply]):
    """An engine's answer to one rung: its own reply, and what the connector added."""

    reply: Reply
    semblend: dict[str, Any]


SubmitRung = Callable[
    [Sequence[int], str | None, dict[str, Any], bool], Awaitable[RungReply[Reply]]
]
"""(token ids, cache salt, connector parameters, whether this is the prompt itself).

Rungs below the prompt are sent with max_tokens=1, and their output is discarded.
"""


async def climb(
    tokens: Sequence[int], submit: SubmitRung[Reply], *, user_salt: str | None = None
) -> RungReply[Reply]:
    """Serve one prompt as a ladder; without reusable spans this is two requests.

    The first rung is only the prompt's first token: it carries the whole prompt to the
    connector's planner, whose answer lists the rungs. If part of a ladder is lost on the
    way, the last rung is still the whole prompt, and the engine computes what is missing.
    """
    if not tokens:
        raise RequestError("tokens: expected a prompt of at least one token")
    salt = new_salt(user_salt)
    asked = await submit(tokens[:1], salt, {PROMPT_KEY: list(tokens)}, False)
    ends = asked.semblend.get(ENDS_KEY)
    if ends is None:
        # No plan: the answer belongs under the user's own salt, where it can be shared.
        return await submit(tokens, user_salt, {}, True)
    for end in ends:
        if not isinstance(end, int) or not 0 < end < len(tokens):
            raise RequestError(f"ladder: expected an end in [1, {len(tokens)}), got {end!r}")
        await submit(tokens[:end], salt, {}, False)
    return await submit(tokens, salt, {}, True)
