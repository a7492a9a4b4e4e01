"""How close an answer is to what was expected: recall, F1, ROUGE-L, KL, and donor leaks.

Every score is in [0, 1] (KL in nats, from 0 up). It is ``None`` if the item has
nothing to compare with: a missing answer is never a perfect one.
"""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence

from rapidfuzz.distance import LCSseq

PASS_THRESHOLD = 0.60

_WORD = re.compile(r"\w+")
_STOPWORDS = frozenset(["a", "an", "and", "as", "in", "of", "the", "to", "was", "were"])
_SUFFIXES = ("ing", "ed", "es", "s")
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def stem(word: str) -> str:
    """Strip one common English ending, so that "running" and "runs" match.

    >>> stem("running"), stem("cities"), stem("ring")
    ('run', 'citi', 'ring')
    """
    for suffix in _SUFFIXES:
        if word.endswith(suffix) and len(word) > len(suffix) + 3:
            root = word[: -len(suffix)]
            return root[:-1] if root[-1] == root[-2] else root
    return word


def answer_terms(text: str) -> frozenset[str]:
    """The content words of `text`: lower case, stemmed, no stopwords."""
    words = _WORD.findall(text.lower())
    return frozenset(stem(word) for word in words if word not in _STOPWORDS)


def answer_recall(output: str, answers: Sequence[str]) -> float | None:
    """The largest share of any expected answer's terms that `output` states."""
    said = answer_terms(output)
    scores = [
        len(expected & said) / len(expected) for expected in map(answer_terms, answers) if expected
    ]
    return max(scores, default=None)


def normalise_answer(text: str) -> str:
    """Lower case, without punctuation, articles and extra spaces, as SQuAD compares answers."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def token_f1(output: str, answers: Sequence[str]) -> float | None:
    """The best SQuAD F1 of `output` against any expected answer."""
    said = normalise_answer(output).split()
    scores: list[float] = []
    for answer in answers:
        expected = normalise_answer(answer).split()
        if expected:
            scores.append(_f1(sum((Counter(said) & Counter(expected)).values()), said, expected))
    return max(scores, default=None)


def rouge_l(output: str, reference: str) -> float:
    """F1 of the longest common subsequence of words; two empty texts are equal (1.0)."""
    said, expected = _WORD.findall(output.lower()), _WORD.findall(reference.lower())
    if not said and not expected:
        return 1.0
    return _f1(LCSseq.similarity(said, expected), said, expected)


def best_rouge_l(output: str, answers: Sequence[str]) -> float | None:
    """The best ROUGE-L of `output` against any expected answer."""
    return max((rouge_l(output, answer) for answer in answers if answer.strip()), default=None)


def states_value(output: str, value: str) -> bool:
    """Whether `output` states `value` as whole words, in order."""
    said, wanted = normalise_answer(output).split(), normalise_answer(value).split()
    span = len(wanted)
    return span > 0 and any(
        said[start : start + span] == wanted for start in range(len(said) - span + 1)
    )


def leaks_donor_fact(output: str, answers: Sequence[str], donor_value: str) -> bool:
    """Whether `output` states the donor's value and none of the recipient's own.

    An answer that states both quotes its own prompt; the other scores judge it.
    """
    return states_value(output, donor_value) and not any(
        states_value(output, answer) for answer in answers
    )


def kl_top_k(cold: Mapping[str, float], warm: Mapping[str, float]) -> float:
    """KL(cold ‖ warm) in nats over the union of two top-k lists of log probabilities.

    A token missing from one list gets that list's smallest log probability minus one nat.
    Both sides are renormalized over the union before the comparison.
    """
    if not cold or not warm:
        raise ValueError("kl_top_k: both lists need at least one token")
    support = sorted(set(cold) | set(warm))
    first = _renormalised([cold.get(token, min(cold.values()) - 1.0) for token in support])
    second = _renormalised([warm.get(token, min(warm.values()) - 1.0) for token in support])
    divergence = sum(math.exp(p) * (p - q) for p, q in zip(first, second, strict=True))
    return max(0.0, divergence)


def _renormalised(logprobs: Sequence[float]) -> list[float]:
    peak = max(logprobs)
    total = peak + math.log(sum(math.exp(value - peak) for value in logprobs))
    return [value - total for value in logprobs]


def _f1(common: int, said: Sequence[str], expected: Sequence[str]) -> float:
    total = len(said) + len(expected)
    return 2.0 * common / total if total else 0.0
