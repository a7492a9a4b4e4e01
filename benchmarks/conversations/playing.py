"""Plays one story on all arms at once: the same prompts, turn by turn, timed in pairs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.conversations.arms import Arm, Reply
from benchmarks.conversations.stories import Question, Story
from semblend.core.chain import common_prefix
from semblend.core.tokens import TokenArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One question and what every arm made of it."""

    kind: str
    replies: dict[str, Reply]
    ideal: int
    """What a prefix cache that forgets nothing computes for this prompt."""
    right: dict[str, bool]
    """By arm; empty where no answer is right or wrong."""


@dataclass(slots=True, kw_only=True)
class Stage:
    """The arms, and the past that an ideal prefix cache would hold."""

    arms: dict[str, Arm]
    tokenizer: Any
    leader: str
    """The arm whose answers the story continues with."""
    idle: bool
    past: list[TokenArray] = field(default_factory=list)
    turns: int = 0

    def play(self, story: Story, *, seen: Callable[[Turn], None]) -> None:
        """All turns of a story."""
        question = next(story)
        while True:
            turn = self._turn(question)
            seen(turn)
            said = turn.replies[self.leader].tokens
            try:
                question = story.send(self.tokenizer.decode(said, skip_special_tokens=True))
            except StopIteration:
                return

    def _turn(self, question: Question) -> Turn:
        prompt = self._tokens(question)
        size = self.arms[self.leader].block_size
        common = max((common_prefix(prompt[:-1], known) for known in self.past), default=0)
        replies = {}
        for name in self._order():
            replies[name] = self.arms[name].ask(prompt, tokens=question.tokens, full=question.full)
            self.arms[name].settle(idle=self.idle)
        said = np.asarray(replies[self.leader].tokens, dtype=np.int32)
        whole = np.concatenate((prompt, said))
        self.past.append(whole[:-1])  # the last token has no K/V
        self._teach(whole, replies)
        right = {}
        if question.expected is not None:
            right = {
                name: question.expected in self.tokenizer.decode(reply.tokens)
                for name, reply in replies.items()
            }
        return Turn(
            kind=question.kind,
            replies=replies,
            ideal=len(prompt) - common // size * size,
            right=right,
        )

    def _order(self) -> Sequence[str]:
        """Another arm first in every turn, so that no arm always runs on warm caches."""
        self.turns += 1
        names = list(self.arms)
        first = self.turns % len(names)
        return names[first:] + names[:first]

    def _teach(self, whole: TokenArray, replies: dict[str, Reply]) -> None:
        """An arm that said something else is given the conversation, untimed.

        Its prefix cache then holds what it would hold had it said the same.
        """
        for name, reply in replies.items():
            if reply.tokens != replies[self.leader].tokens:
                self.arms[name].ask(whole, tokens=1, full=True)
                self.arms[name].settle(idle=False)

    def _tokens(self, question: Question) -> TokenArray:
        text = self.tokenizer.apply_chat_template(
            question.messages, tokenize=False, add_generation_prompt=True
        )
        ids = self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return np.asarray(ids, dtype=np.int32)
