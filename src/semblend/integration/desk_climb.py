"""Climbing a ladder whose plan and result are asked for at a desk.

The climbing is :func:`semblend.integration.ladder.climb`, the same for every engine. If anything
about a ladder goes wrong, its answer is thrown away and the prompt is sent as it would have been
without us.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from semblend.integration.ladder import ENDS_KEY, PROMPT_KEY, RungReply, climb, split_salt
from semblend.integration.ladder_desk import Desk, LadderQuestion

logger = logging.getLogger("semblend.ladder")

Send = Callable[[list[int], str | None, bool], Awaitable[Any]]
"""(token ids, cache salt, whether this is the prompt itself): the engine's own output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderAnswer:
    """The engine's own output, and what donors supplied to it."""

    output: Any
    report: dict[str, Any] = field(default_factory=dict)
    """`reused_tokens` and, for a ladder, `rungs`, `donor_ids`, `policy`, `certified`."""


class DeskClimber:
    """Sends prompts as ladders; one desk, any number of prompts."""

    def __init__(self, desk: Desk, *, salt_id: Callable[[str | None], int | None]) -> None:
        """`salt_id` is the engine's own numbering of salts."""
        self._desk = desk
        self._salt_id = salt_id

    async def answer(
        self, tokens: Sequence[int], send: Send, *, user_salt: str | None = None
    ) -> LadderAnswer:
        """The answer to a prompt, climbed where that pays."""
        prompt = [int(token) for token in tokens]
        salts: list[str] = []

        async def submit(
            part: Sequence[int], salt: str | None, hints: dict[str, Any], is_prompt: bool
        ) -> RungReply[Any]:
            if PROMPT_KEY in hints and salt is not None:
                ends = await asyncio.to_thread(self._plan, hints[PROMPT_KEY], salt)
                if ends is None:
                    return RungReply(reply=None, semblend={})
                salts.append(salt)
                return RungReply(reply=None, semblend={ENDS_KEY: ends})
            return RungReply(reply=await send(list(part), salt, is_prompt), semblend={})

        try:
            reply = await climb(prompt, submit, user_salt=user_salt)
        except Exception:
            if not salts:
                raise  # the prompt itself was refused, or the desk cannot be reached
            logger.warning("SemBlend: a ladder was given up", exc_info=True)
            await self._report(salts[0])
            return LadderAnswer(
                output=await send(prompt, user_salt, True), report={"reused_tokens": 0}
            )
        if not salts:
            return LadderAnswer(output=reply.reply, report={"reused_tokens": 0})
        report = await self._report(salts[0])
        if report.get("failed"):
            logger.warning("SemBlend: an answer is thrown away: %s", report["failed"])
            return LadderAnswer(
                output=await send(prompt, user_salt, True), report={**report, "reused_tokens": 0}
            )
        return LadderAnswer(output=reply.reply, report=report)

    def _plan(self, tokens: Sequence[int], salt: str) -> list[int] | None:
        question = LadderQuestion(
            tokens=tokens,
            salt=salt,
            salt_id=self._salt_id(salt),
            user_salt_id=self._salt_id(split_salt(salt)[0]),
        )
        try:
            return self._desk.plan(question)
        except Exception as error:
            logger.warning("SemBlend: no plan, the prompt is sent as it is: %s", error)
            return None

    async def _report(self, salt: str) -> dict[str, Any]:
        try:
            return await asyncio.to_thread(self._desk.report, salt)
        except Exception as error:
            return {"reused_tokens": 0, "failed": f"{type(error).__name__}: {error}"}
