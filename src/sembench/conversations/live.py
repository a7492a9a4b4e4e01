"""Plays stories against an endpoint, turn by turn, as a client would."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, replace

import numpy as np

from sembench import quality
from sembench.blocks import TokenArray
from sembench.conversations.measuring import EarlierRequests
from sembench.conversations.messages import Turn
from sembench.conversations.rendering import prompt_of
from sembench.conversations.story import Story
from sembench.conversations.turn_rows import TurnRow
from sembench.live.endpoint_tokens import EndpointTokens
from sembench.live.engine_counters import EngineCounters
from sembench.live.prompt import EngineClient, Prompt
from sembench.live.reply import Reply
from sembench.tokenizers import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveTurns:
    """How turns are sent."""

    run_id: str
    max_tokens: int = 32
    live_answers: bool = True
    """Continue with what the model said; False continues with the scripted answers."""
    send_tools: bool = True
    cache_salt: str = ""
    donor_wait_ms: float = 2000.0


async def live_turns(
    stories: Iterable[Story],
    client: EngineClient,
    tokenizer: Tokenizer,
    reuse: EarlierRequests,
    options: LiveTurns,
    *,
    counters: EngineCounters | None = None,
    tokens: EndpointTokens | None = None,
) -> AsyncIterator[TurnRow]:
    """Yield one row per turn, one request at a time. After a failed turn the script continues.

    `tokens` counts in the engine's own tokens if the endpoint exposes its tokenizer.
    Otherwise `tokenizer` counts them, in the layout of offline runs.
    """
    for story in stories:
        play = story.play()
        turn = next(play, None)
        while turn is not None:
            before = None if counters is None else await counters.read()
            reply = await client.complete(_prompt(turn, options))
            if counters is not None and before is not None:
                reply = await counters.confirm(before, reply)
                if reply.ok:
                    await counters.wait_for_donors(before, 1, options.donor_wait_ms / 1000.0)
            text = prompt_of(turn)
            prompt = await _prompt_tokens(turn, text, tokenizer, tokens, options)
            yield _row(turn, reply, reuse, prompt, text)
            said = reply.text if reply.ok and options.live_answers else None
            # The engine keeps what it decoded, even if the conversation continues with the script.
            decoded = reply.text if reply.ok else ""
            answer = None if tokens is None else await tokens.text(decoded)
            answer = tokenizer.encode(decoded) if answer is None else answer
            if reply.output_tokens is not None and reply.output_tokens >= options.max_tokens:
                # Cut off: the last token was sampled but never computed, so no cache holds it.
                answer = answer[:-1]
            reuse.remember(turn.turn_id, np.concatenate([prompt, answer]), text + decoded)
            try:
                turn = play.send(said)
            except StopIteration:
                break


async def _prompt_tokens(
    turn: Turn,
    text: str,
    tokenizer: Tokenizer,
    tokens: EndpointTokens | None,
    options: LiveTurns,
) -> TokenArray:
    found = None
    if tokens is not None:
        messages = [message.to_dict() for message in turn.messages]
        found = await tokens.chat(messages, turn.tools if options.send_tools else ())
    return tokenizer.encode(text) if found is None else found


def _prompt(turn: Turn, options: LiveTurns) -> Prompt:
    return Prompt(
        request_id=f"sembench-turn-{turn.turn_id}-{options.run_id}",
        text="",
        max_tokens=options.max_tokens,
        cache_salt=options.cache_salt,
        messages=tuple(message.to_dict() for message in turn.messages),
        tools=turn.tools if options.send_tools else (),
    )


def _row(
    turn: Turn, reply: Reply, reuse: EarlierRequests, prompt: TokenArray, text: str
) -> TurnRow:
    found = reuse.measure(turn.turn_id, prompt, text)
    computed = None
    if reply.prompt_tokens is not None and reply.cached_tokens is not None:
        computed = reply.prompt_tokens - reply.cached_tokens
    return replace(
        TurnRow.of(turn, found),
        engine_prompt_tokens=reply.prompt_tokens,
        exact_tokens=reply.exact_tokens,
        reused_tokens=reply.reused_tokens,
        continued_tokens=reply.continued_tokens,
        computed_tokens=computed,
        confirmed_by=reply.confirmed_by,
        outcome=reply.outcome,
        reason=reply.reason,
        ttft_ms=reply.ttft_ms if reply.ok else None,
        latency_ms=reply.latency_ms if reply.ok else None,
        output_text=reply.text if reply.ok else None,
        answer_recall=quality.answer_recall(reply.text, turn.expected) if reply.ok else None,
        error=reply.error,
    )
