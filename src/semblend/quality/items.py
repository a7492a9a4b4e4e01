"""One item to measure: prompts read before, a prompt now, and the right answer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from semblend.core.tokens import TokenArray
from semblend.quality.texts.documents import Fact


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A prompt as a chat: an instruction, earlier turns, a body and a question."""

    instruction: str
    body: str
    question: str
    turns: tuple[tuple[str, str], ...] = ()
    """Earlier questions and answers about the same body."""
    chat: tuple[tuple[str, str], ...] = ()
    """Roles and contents as somebody sent them, instead of all that."""
    token_ids: tuple[int, ...] = ()
    """The prompt as an engine saw it, instead of any text."""

    @property
    def messages(self) -> list[dict[str, str]]:
        """The chat. The body comes before the first question."""
        if self.token_ids:
            return [{"role": "tokens", "content": " ".join(map(str, self.token_ids))}]
        if self.chat:
            return [{"role": role, "content": content} for role, content in self.chat]
        questions = [*(question for question, _ in self.turns), self.question]
        chat = [{"role": "system", "content": self.instruction}]
        for number, question in enumerate(questions):
            text = f"Question: {question}"
            chat.append(
                {"role": "user", "content": f"{self.body}\n\n{text}" if number == 0 else text}
            )
            if number < len(self.turns):
                chat.append({"role": "assistant", "content": self.turns[number][1]})
        return chat


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One measurement as text, made by a workload."""

    workload: str
    kind: str
    number: int
    target: Ask
    donors: tuple[Ask, ...]
    answer: str
    leaked: tuple[str, ...] = ()
    """Answers that would reveal a donor's fact."""
    edits: int = 0
    depth: str = ""
    """Where the value asked for is in its span: head, middle or deep."""
    continuation: str = ""
    """Text on which to judge next tokens, instead of an answer."""

    @property
    def case_id(self) -> str:
        """A name that is stable across runs."""
        return f"{self.workload}/{self.kind}/{self.number}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Item:
    """A case as token ids."""

    case: Case
    tokens: TokenArray
    donors: tuple[TokenArray, ...]
    answer_ids: TokenArray
    """Tokens forced after the prompt: the right answer and end token, or the continuation."""


def encode(tokenizer: Any, ask: Ask) -> TokenArray:
    """The prompt's token ids, up to where the assistant begins.

    In the model's own chat template, thinking off where it can be; without a template, the
    contents as they stand.
    """
    if ask.token_ids:
        return np.asarray(ask.token_ids, dtype=np.int32)
    if getattr(tokenizer, "chat_template", None):
        text = tokenizer.apply_chat_template(
            ask.messages, add_generation_prompt=True, tokenize=False, enable_thinking=False
        )
    else:
        text = "\n\n".join([*(message["content"] for message in ask.messages), "Answer:"])
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return np.asarray(ids, dtype=np.int32)


def to_item(case: Case, tokenizer: Any) -> Item:
    """Tokenise a case."""
    text = case.continuation or f" {case.answer}"
    answer = tokenizer(text, add_special_tokens=False)["input_ids"]
    if not case.continuation:
        answer = [*answer, tokenizer.eos_token_id]
    return Item(
        case=case,
        tokens=encode(tokenizer, case.target),
        donors=tuple(encode(tokenizer, donor) for donor in case.donors),
        answer_ids=np.asarray(answer, dtype=np.int32),
    )


def data_fingerprint(cases: Iterable[Case]) -> str:
    """A content hash of everything the model sees and of the right answers."""
    digest = hashlib.sha256()
    for case in cases:
        shown = [ask.messages for ask in (case.target, *case.donors)]
        text = json.dumps([case.case_id, shown, case.answer, case.continuation])
        digest.update(text.encode() + b"\n")
    return digest.hexdigest()[:32]


def other_values(facts: Sequence[Fact], right: str) -> tuple[str, ...]:
    """Values of a donor's facts that are wrong here."""
    return tuple(dict.fromkeys(fact.value for fact in facts if fact.value != right))
