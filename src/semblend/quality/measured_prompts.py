"""Prompts without answers, as users and logs have them: how far from cold are answers to them?

A folder of text files, JSON lines (`prompt`, `messages` or `token_ids`), or the audit stream of an
engine that was told to record prompts (`audit:FILE`). Prompts that share text are donors of one
another, as they would be when served. A prompt that shares nothing is moved: its donor is the same
prompt behind the beginning of another. Nothing of them is written anywhere but to the records of
a run, which hold answers.
"""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semblend.core.errors import SerialisationError
from semblend.core.json_text import parse_json
from semblend.quality.items import Ask, Case
from semblend.quality.texts.reading import HUB, reading_cases

AUDIT = "audit:"
SUFFIXES = (".txt", ".md")
SHARED_WORDS = 24
"""A run of so many words, or tokens, in common makes one prompt a donor of another."""
EVERY = 8
"""Of the runs of a prompt that is looked up in, one in so many is remembered."""
MOST_DONORS = 4
BEFORE_WORDS = 120
"""Of another prompt, in front of one that shares nothing."""
LEAST_PROMPTS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPrompt:
    """One prompt, as a chat or as an engine saw it."""

    chat: tuple[tuple[str, str], ...] = ()
    token_ids: tuple[int, ...] = ()

    @property
    def words(self) -> Sequence[Hashable]:
        """What is compared."""
        return self.token_ids or " ".join(content for _, content in self.chat).split()

    @property
    def ask(self) -> Ask:
        """It, to be asked."""
        return Ask(instruction="", body="", question="", chat=self.chat, token_ids=self.token_ids)

    def behind(self, other: MeasuredPrompt) -> Ask:
        """It, behind the beginning of another."""
        if self.token_ids:
            ids = (*other.token_ids[:BEFORE_WORDS], *self.token_ids)
            return Ask(instruction="", body="", question="", token_ids=ids)
        (role, content), *more = self.chat
        before = " ".join(str(word) for word in other.words[:BEFORE_WORDS])
        chat = ((role, f"{before}\n\n{content}"), *more)
        return Ask(instruction="", body="", question="", chat=chat)


def real_cases(source: str, *, seed: int, items: int) -> Iterator[Case]:
    """Real text: questions with answers in LongBench's form, or prompts without.

    Raises
    ------
    SerialisationError
        If the source cannot be read or holds neither.
    """
    if source.startswith(HUB) or (Path(source).is_file() and _has_answers(Path(source))):
        yield from reading_cases(source, seed=seed, items=items)
    else:
        yield from prompt_cases(source, seed=seed, items=items)


def prompt_cases(source: str, *, seed: int, items: int) -> Iterator[Case]:
    """Each prompt once, behind those it shares text with.

    Raises
    ------
    SerialisationError
        If there are too few prompts, or something that is none.
    """
    prompts = list(dict.fromkeys(read_prompts(source)))
    if len(prompts) < LEAST_PROMPTS:
        raise SerialisationError(f"{source}: {len(prompts)} prompts; at least 2 expected")
    holders: dict[int, list[int]] = defaultdict(list)
    for at, prompt in enumerate(prompts):
        for run in set(_runs(prompt)[::EVERY]):
            holders[run].append(at)
    rng = random.Random(f"semblend-prompts-{seed}")
    for number, at in enumerate(rng.sample(range(len(prompts)), len(prompts))[:items]):
        prompt = prompts[at]
        shared = Counter(o for run in _runs(prompt) for o in holders.get(run, ()) if o != at)
        donors = [prompts[other].ask for other, _ in shared.most_common(MOST_DONORS)]
        other = prompts[(at + 1 + rng.randrange(len(prompts) - 1)) % len(prompts)]
        yield Case(
            workload="reading",
            kind="shared" if donors else "moved",
            number=number,
            target=prompt.ask,
            donors=tuple(donors) or (prompt.behind(other),),
            answer="",
        )


def read_prompts(source: str) -> Iterator[MeasuredPrompt]:
    """All prompts of a source, as they come.

    Raises
    ------
    SerialisationError
        If it cannot be read, naming the line.
    """
    if source.startswith(AUDIT):
        yield from _audited(Path(source.removeprefix(AUDIT)))
        return
    path = Path(source)
    if not path.is_dir():
        yield from _lines(path)
        return
    for file in sorted(path.rglob("*")):
        if file.suffix in SUFFIXES:
            yield _text(_read(file))
        elif file.suffix == ".jsonl":
            yield from _lines(file)


def _lines(path: Path) -> Iterator[MeasuredPrompt]:
    for number, line in enumerate(_read(path).splitlines(), 1):
        if line.strip():
            yield _prompt(_object(line, f"{path}:{number}"), f"{path}:{number}")


def _audited(path: Path) -> Iterator[MeasuredPrompt]:
    found = False
    for number, line in enumerate(_read(path).splitlines(), 1):
        row = _object(line, f"{path}:{number}") if line.strip() else {}
        if "token_ids" in row:
            found = True
            yield _prompt(row, f"{path}:{number}")
    if not found:
        raise SerialisationError(
            f"{path}: no prompts in it; an engine records them with audit_path and audit_prompts"
        )


def _prompt(row: Mapping[str, Any], where: str) -> MeasuredPrompt:
    try:
        if "token_ids" in row:
            return MeasuredPrompt(token_ids=tuple(int(token) for token in row["token_ids"]))
        if "messages" in row:
            chat = tuple((message["role"], message["content"]) for message in row["messages"])
            if not chat or not all(isinstance(text, str) for pair in chat for text in pair):
                raise TypeError("messages with a role and a text as content expected")
            return MeasuredPrompt(chat=chat)
        text = row["prompt"]
        if not isinstance(text, str):
            raise TypeError("prompt: a text expected")
        return _text(text)
    except (KeyError, TypeError, ValueError) as error:
        raise SerialisationError(
            f"{where}: prompt, messages or token_ids expected ({error})"
        ) from error


def _text(text: str) -> MeasuredPrompt:
    return MeasuredPrompt(chat=(("user", text),))


def _object(line: str, where: str) -> dict[str, Any]:
    try:
        row = parse_json(line)
    except ValueError as error:
        raise SerialisationError(f"{where}: not JSON: {error}") from error
    if not isinstance(row, dict):
        raise SerialisationError(f"{where}: a JSON object expected")
    return row


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise SerialisationError(f"{path} cannot be read: {error}") from error


def _has_answers(path: Path) -> bool:
    """Whether a file is in LongBench's form; a compressed one always was."""
    if path.suffix == ".xz":
        return True
    try:
        with path.open(encoding="utf-8") as file:
            first = json.loads(file.readline())
    except (OSError, ValueError):
        return True  # what is wrong with it is said where it is read
    return isinstance(first, dict) and not {"prompt", "messages", "token_ids"} & first.keys()


def _runs(prompt: MeasuredPrompt) -> list[int]:
    words = prompt.words
    return [
        hash(tuple(words[at : at + SHARED_WORDS]))
        for at in range(max(0, len(words) - SHARED_WORDS + 1))
    ]
