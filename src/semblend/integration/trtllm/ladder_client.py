"""Segmented reuse on TensorRT-LLM with its public API alone: `LLM.generate_async` and a salt.

ladder = LadderLLM(llm, DeskClient("/run/semblend/ladder.sock"))
answer = await ladder.generate(token_ids, SamplingParams(max_tokens=64))
answer.output, answer.report["reused_tokens"]
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from semblend.integration.desk_climb import DeskClimber, LadderAnswer
from semblend.integration.ladder_desk import Desk
from semblend.integration.trtllm import upstream


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
        self._climber = DeskClimber(desk, salt_id=salt_id)

    async def generate(
        self,
        tokens: Sequence[int],
        sampling_params: Any,
        *,
        cache_salt: str | None = None,
        **parameters: Any,
    ) -> LadderAnswer:
        """The answer to a prompt; `parameters` go to `generate_async` with the prompt itself."""
        rung = copy.copy(sampling_params)
        rung.max_tokens = 1  # its output is thrown away

        async def send(part: list[int], salt: str | None, is_prompt: bool) -> Any:
            if not is_prompt:
                return await self._llm.generate_async(part, rung, cache_salt=salt)
            return await self._llm.generate_async(
                part, sampling_params, cache_salt=salt, **parameters
            )

        return await self._climber.answer(tokens, send, user_salt=cache_salt)
