"""Segmented reuse on TensorRT-LLM with its public API alone: `LLM.generate_async` and a salt.

    ladder = LadderLLM(llm, DeskClient("/run/semblend/ladder.sock"))
    answer = await ladder.generate(token_ids, SamplingParams(max_tokens=64))
    answer.output, answer.report["reused_tokens"]

The climbing is :func:`semblend.integration.ladder.climb`, the same for every engine. If
anything about a ladder goes wrong, its answer is thrown away and the prompt is sent as it
would have been without us.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from semblend.integration.ladder import ENDS_KEY, PROMPT_KEY, RungReply, climb, split_salt
from semblend.integration.ladder_desk import Desk, LadderQuestion
from semblend.integration.trtllm import upstream

logger = logging.getLogger("semblend.trtllm")


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderAnswer:
    """TensorRT-LLM's own output, and what donors supplied to it."""

    output: Any
    report: dict[str, Any] = field(default_factory=dict)
    """`reused_tokens` and, for a ladder, `rungs`, `donor_ids`, `policy`, `certified`."""


class LadderLLM:
    """Sends prompts of token ids as ladders through an `LLM`."""

    def __init__(
        self,
        llm: Any,
        desk: Desk,
        *,
        salt_id: Callable[[str | None], int | None] = upstream.cache_salt_id,
    ) -> None:
        """`salt_id` is the engine's own numbering of salts."""
        self._llm = llm
        self._desk = desk
        self._salt_id = salt_id

    async def generate(
        self,
        tokens: Sequence[int],
        sampling_params: Any,
        *,
        cache_salt: str | None = None,
        **parameters: Any,
    ) -> LadderAnswer:
        """The answer to a prompt; `parameters` go to `generate_async` with the prompt itself."""
        prompt = [int(token) for token in tokens]
        salts: list[str] = []

        async def submit(
            part: Sequence[int], salt: str | None, hints: dict[str, Any], is_prompt: bool
        ) -> RungReply[Any]:
            if PROMPT_KEY in hints and salt is not None:
                ends = await asyncio.to_thread(self._plan, part_of=hints[PROMPT_KEY], salt=salt)
                if ends is None:
                    return RungReply(reply=None, semblend={})
                salts.append(salt)
                return RungReply(reply=None, semblend={ENDS_KEY: ends})
            chosen = sampling_params if is_prompt else _one_token(sampling_params)
            given = parameters if is_prompt else {}
            output = await self._llm.generate_async(list(part), chosen, cache_salt=salt, **given)
            return RungReply(reply=output, semblend={})

        try:
            reply = await climb(prompt, submit, user_salt=cache_salt)
        except Exception:
            if not salts:
                raise  # the prompt itself was refused, or the desk cannot be reached
            logger.warning("SemBlend: a ladder was given up", exc_info=True)
            await self._report(salts[0])
            return await self._plainly(prompt, sampling_params, cache_salt, parameters)
        if not salts:
            return LadderAnswer(output=reply.reply, report={"reused_tokens": 0})
        report = await self._report(salts[0])
        if report.get("failed"):
            logger.warning("SemBlend: an answer is thrown away: %s", report["failed"])
            again = await self._plainly(prompt, sampling_params, cache_salt, parameters)
            return LadderAnswer(output=again.output, report={**report, "reused_tokens": 0})
        return LadderAnswer(output=reply.reply, report=report)

    def _plan(self, *, part_of: Sequence[int], salt: str) -> list[int] | None:
        question = LadderQuestion(
            tokens=part_of,
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

    async def _plainly(
        self,
        prompt: list[int],
        sampling_params: Any,
        cache_salt: str | None,
        parameters: dict[str, Any],
    ) -> LadderAnswer:
        output = await self._llm.generate_async(
            prompt, sampling_params, cache_salt=cache_salt, **parameters
        )
        return LadderAnswer(output=output, report={"reused_tokens": 0})


def _one_token(sampling_params: Any) -> Any:
    """The same parameters for a rung, whose output is thrown away."""
    shorter = copy.copy(sampling_params)
    shorter.max_tokens = 1
    return shorter
