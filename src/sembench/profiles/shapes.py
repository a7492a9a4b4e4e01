"""How the rows of published datasets become documents with a question, in LongBench's fields."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from sembench.errors import SourceError

Row = tuple[str, Mapping[str, Any]]
Shaped = Iterator[tuple[str, dict[str, Any]]]

SUMMARISE = "What is this about, in one sentence?"
_STORY_BREAK = "|||||"
_HEADING = re.compile(r"^\s*= [^=].*[^=] =\s*$")
_ASSISTANT = ("assistant", "gpt", "bot", "chatgpt")


def summaries(
    document: str, summary: str, *, asks: str = SUMMARISE
) -> Callable[[Iterable[Row]], Shaped]:
    """The shape of summarisation sets: a text and what it comes to."""

    def shape(rows: Iterable[Row]) -> Shaped:
        for where, row in rows:
            text = _text(row, document, where)
            yield (
                where,
                {
                    "_id": row.get("id"),
                    "context": text,
                    "input": asks,
                    "answers": [_text(row, summary, where)],
                    "title": row.get("title"),
                },
            )

    return shape


def multi_news(rows: Iterable[Row]) -> Shaped:
    """Several articles in one field, divided by bars."""
    for where, shaped in summaries("document", "summary")(rows):
        articles = [part.strip() for part in shaped["context"].split(_STORY_BREAK)]
        yield where, {**shaped, "context": "\n\n".join(part for part in articles if part)}


def wildchat(rows: Iterable[Row]) -> Shaped:
    """A conversation up to its last question; conversations of one turn have no context."""
    for where, row in rows:
        turns = conversation(row, where)
        last = max((at for at, (role, _) in enumerate(turns) if role == "user"), default=0)
        if last == 0:
            continue
        said = [f"{role}: {text}" for role, text in turns[:last]]
        answer = turns[last + 1][1] if last + 1 < len(turns) else ""
        yield (
            where,
            {
                "_id": row.get("conversation_hash"),
                "context": "\n\n".join(said),
                "input": turns[last][1],
                "answers": [answer] if answer else [],
                "language": row.get("language"),
            },
        )


def conversation(row: Mapping[str, Any], where: str) -> list[tuple[str, str]]:
    """(role, text) of a row's conversation, in any of the usual field names.

    Raises
    ------
    SourceError
        If it is no conversation.
    """
    turns = row.get("conversation") or row.get("messages") or row.get("conversations")
    found: list[tuple[str, str]] = []
    try:
        for turn in turns or ():
            role = str(turn.get("role") or turn["from"]).lower()
            text = str(turn.get("content") or turn.get("value") or "").strip()
            if role != "system" and text:
                found.append(("assistant" if role in _ASSISTANT else "user", text))
    except (AttributeError, KeyError, TypeError) as error:
        raise SourceError(
            f"{where}: not a conversation (conversation or messages with role and content, or "
            f"conversations with from and value): {error!r}"
        ) from error
    if not found:
        raise SourceError(
            f"{where}: not a conversation (conversation or messages with role and content, or "
            "conversations with from and value)"
        )
    return found


def scbench(rows: Iterable[Row]) -> Shaped:
    """One long context with several questions: each is a record of its own."""
    for where, row in rows:
        context = _text(row, "context", where)
        for number, turn in enumerate(row.get("multi_turns") or ()):
            answer = turn.get("answer")
            answers = answer if isinstance(answer, list) else [answer]
            yield (
                where,
                {
                    "_id": f"{row.get('id', where)}-{number}",
                    "context": context,
                    "input": _text(turn, "input", f"{where}.multi_turns[{number}]"),
                    "answers": [str(each) for each in answers if each is not None],
                },
            )


def longeval(rows: Iterable[Row]) -> Shaped:
    """Lines to be found again: the question stands behind them, in the same text."""
    for where, row in rows:
        prompt = _text(row, "prompt", where).rstrip()
        lines, _, question = prompt.rpartition("\n")
        yield (
            where,
            {
                "_id": row.get("id"),
                "context": lines or prompt,
                "input": question if lines else "",
                "answers": [str(row["expected_number"])] if "expected_number" in row else [],
            },
        )


def triviaqa(rows: Iterable[Row]) -> Shaped:
    """A question and the pages that answer it; those without a page are left out."""
    for where, row in rows:
        pages = _listed(row, "entity_pages", "wiki_context")
        pages += _listed(row, "search_results", "search_context")
        context = "\n\n".join(page for page in pages if page.strip())
        if not context:
            continue
        answer = row.get("answer") or {}
        if not isinstance(answer, Mapping):
            raise SourceError(f"{where}.answer: expected an object with value and aliases")
        names = [answer.get("value"), *(answer.get("aliases") or ())]
        yield (
            where,
            {
                "_id": row.get("question_id"),
                "context": context,
                "input": _text(row, "question", where),
                "answers": list(dict.fromkeys(str(name) for name in names if name)),
            },
        )


def narrativeqa(rows: Iterable[Row]) -> Shaped:
    """A question about a story; one story has many, and each is a record."""
    for number, (where, row) in enumerate(rows):
        document = row.get("document")
        if not isinstance(document, Mapping):
            raise SourceError(f"{where}.document: expected an object with id and text")
        summary = document.get("summary")
        text = document.get("text") or (summary or {}).get("text")
        if not isinstance(text, str):
            raise SourceError(f"{where}.document.text: expected a string")
        yield (
            where,
            {
                "_id": f"{document.get('id', 'story')}-{number}",
                "context": text,
                "input": _inner(row.get("question"), f"{where}.question"),
                "answers": [_inner(each, f"{where}.answers") for each in row.get("answers") or ()],
            },
        )


def wikitext(rows: Iterable[Row]) -> Shaped:
    """Articles put together from lines: one begins at a heading between single marks."""
    lines: list[str] = []
    begun = ""
    for where, row in rows:
        text = row.get("text")
        if not isinstance(text, str):
            raise SourceError(f"{where}.text: expected a string")
        if _HEADING.match(text) and lines:
            yield from _article(lines, begun)
            lines = []
        begun = begun if lines else where
        if text.strip():
            lines.append(text.strip())
    yield from _article(lines, begun)


def _article(lines: list[str], where: str) -> Shaped:
    if len(lines) > 1:  # a heading alone is no article
        title = lines[0].strip("= ")
        yield where, {"context": "\n".join(lines), "input": "", "answers": [], "title": title}


def _text(row: Mapping[str, Any], name: str, where: str) -> str:
    value = row.get(name)
    if not isinstance(value, str) or not value.strip():
        raise SourceError(f"{where}.{name}: expected a text that is not empty")
    return value


def _inner(value: Any, where: str) -> str:
    """A text, or an object that holds one as `text`."""
    found = value.get("text") if isinstance(value, Mapping) else value
    if not isinstance(found, str):
        raise SourceError(f"{where}: expected a text, or an object with one")
    return found


def _listed(row: Mapping[str, Any], outer: str, inner: str) -> list[str]:
    """The texts of a field of lists, or of a list of objects: the hub has both."""
    value = row.get(outer) or {}
    if isinstance(value, Mapping):
        return [text for text in value.get(inner) or () if isinstance(text, str)]
    return [str(each[inner]) for each in value if isinstance(each, Mapping) and each.get(inner)]
