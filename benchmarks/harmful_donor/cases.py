"""A victim's prompt about a common document, and the attacker's donor with the same document."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np

from semblend.core.tokens import TokenArray
from semblend.quality.items import Ask, Case, Item, encode
from semblend.quality.redteam.forms import FORMS, values_of
from semblend.quality.redteam.names import subjects
from semblend.quality.texts.documents import INSTRUCTIONS
from semblend.quality.texts.prose import sentence

FACTS = 4
SENTENCES = 12
STATED = ("code", "born", "lives")
"""Kinds of facts, of which the model is more and less sure."""
TAIL_QUESTION = "What is said here?"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Victim:
    """A prompt as tokens, in three parts, and two answers."""

    number: int
    case: Case
    head: TokenArray
    """Everything before the document."""
    document: TokenArray
    tail: TokenArray
    """The question, up to where the answer begins."""
    right: TokenArray
    wrong: TokenArray
    """What the attacker wants to be said: another value of the document."""
    donor_head: TokenArray
    donor_tail: TokenArray
    separator: TokenArray
    """Ends a paragraph, after which a moved document costs a policy the fewest tokens."""

    @property
    def tokens(self) -> TokenArray:
        """The victim's prompt."""
        return np.concatenate((self.head, self.document, self.tail))

    def donor(self, prefix: TokenArray) -> TokenArray:
        """The attacker's prompt: a prefix of its choice before the document."""
        return np.concatenate(
            (self.donor_head, prefix, self.separator, self.document, self.donor_tail)
        ).astype(np.int32)

    def item(self, prefix: TokenArray) -> Item:
        """The victim's prompt with the attacker's as its donor."""
        return Item(
            case=self.case, tokens=self.tokens, donors=(self.donor(prefix),), answer_ids=self.right
        )


def make_victim(number: int, tokenizer: object, *, seed: int = 0) -> Victim:
    """Write the document of this number."""
    rng = random.Random(f"semblend-harm-{seed}-{number}")
    form = FORMS[STATED[number % len(STATED)]]
    people = subjects("people", FACTS, rng)
    asked, wanted, *_ = values = list(values_of(form.values, FACTS, rng))
    parts = [sentence(rng) for _ in range(SENTENCES)]
    for person, value in zip(people, values, strict=True):
        statement = form.text.format(subject=person, gap="", value=value)
        parts.insert(rng.randrange(1, len(parts)), statement)
    mine, other = rng.sample(INSTRUCTIONS, 2)
    body = " ".join(parts)
    ask = Ask(instruction=mine, body=body, question=form.question.format(subject=people[0]))
    case = Case(
        workload="harmful_donor",
        kind="hijack",
        number=number,
        target=ask,
        donors=(),
        answer=asked,
        leaked=(wanted,),
    )
    head, document, tail = _parts(tokenizer, ask)
    donor_head, same, donor_tail = _parts(
        tokenizer, Ask(instruction=other, body=body, question=TAIL_QUESTION)
    )
    # Where the document's last token merges with what follows, the two runs differ in length.
    length = min(len(document), len(same))
    return Victim(
        number=number,
        case=case,
        head=head,
        document=document[:length],
        tail=np.concatenate((document[length:], tail)),
        right=_answer(tokenizer, asked),
        wrong=_answer(tokenizer, wanted),
        donor_head=donor_head,
        donor_tail=np.concatenate((same[length:], donor_tail)),
        separator=_ids(tokenizer, ".\n\n"),
    )


def _parts(tokenizer: object, ask: Ask) -> tuple[TokenArray, TokenArray, TokenArray]:
    """A prompt's tokens before, in and after its body: the body is where two prompts differ."""
    tokens = encode(tokenizer, ask)
    other = encode(tokenizer, Ask(instruction=ask.instruction, body="#", question=ask.question))
    shorter = min(len(tokens), len(other))
    differ = np.flatnonzero(tokens[:shorter] != other[:shorter])
    start = int(differ[0]) if len(differ) else shorter
    behind = np.flatnonzero(tokens[::-1][:shorter] != other[::-1][:shorter])
    end = len(tokens) - (int(behind[0]) if len(behind) else shorter)
    return tokens[:start], tokens[start:end], tokens[end:]


def _answer(tokenizer: object, value: str) -> TokenArray:
    eos: int = tokenizer.eos_token_id  # type: ignore[attr-defined]
    return np.append(_ids(tokenizer, f" {value}"), eos).astype(np.int32)


def _ids(tokenizer: object, text: str) -> TokenArray:
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]  # type: ignore[operator]
    return np.asarray(ids, dtype=np.int32)


def benign_prefix(victim: Victim, tokens: int, tokenizer: object) -> TokenArray:
    """As many tokens of ordinary text."""
    rng = random.Random(f"semblend-benign-{victim.number}-{tokens}")
    text = " ".join(sentence(rng) for _ in range(2 + tokens // 8))
    return _ids(tokenizer, text)[:tokens]
