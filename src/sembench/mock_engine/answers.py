"""How the mock answers: it quotes the sentence of its prompt that best fits the question.

Deterministic, and truthful to the text it gets. To cheat, it gets the donor's text
instead of the prompt's.
"""

from __future__ import annotations

import re
from collections import Counter

from sembench.quality import answer_terms

_SENTENCE = re.compile(r"[^.!?\n]+[.!?]?")
_WORDS = re.compile(r"\S+\s*")
_NAME = re.compile(r"(?<=\s)[A-Z]\w+")
_NAME_WEIGHT = 10.0
UNKNOWN = "The text does not say."


def question_of(prompt: str) -> str:
    """The last question in the prompt, or else its last sentence."""
    sentences = _sentences(prompt)
    asking = [sentence for sentence in sentences if sentence.endswith("?")]
    return (asking or sentences or [""])[-1]


def answer(prompt: str, *, evidence: str | None = None) -> str:
    """Answer the prompt's question from `evidence` (the prompt itself unless given).

    Words that the question does not contain come first, so that even a short answer
    states the requested value. The whole sentence follows.
    """
    question = question_of(prompt)
    asked = answer_terms(question)
    sentences = [
        (sentence, answer_terms(sentence))
        for sentence in _sentences(prompt if evidence is None else evidence)
        if not sentence.endswith("?")
    ]
    # A name identifies the question better than any other word, a rare word better than a common
    # one.
    common = Counter(term for _, terms in sentences for term in terms & asked)
    names = answer_terms(" ".join(_NAME.findall(question)))
    best, best_score = "", 0.0
    for sentence, terms in sentences:
        score = sum(
            (_NAME_WEIGHT if term in names else 1.0) / common[term] for term in terms & asked
        )
        if score > best_score:
            best, best_score = sentence, score
    if not best:
        return UNKNOWN
    news = [word for word in best.split() if answer_terms(word) - asked]
    return " ".join([*news, "-", best]) if news else best


def pieces(text: str, limit: int) -> list[str]:
    """The answer as at most `limit` streamed tokens (words with their spaces)."""
    return _WORDS.findall(text)[:limit]


def _sentences(text: str) -> list[str]:
    return [found for part in _SENTENCE.findall(text) if (found := part.strip())]
