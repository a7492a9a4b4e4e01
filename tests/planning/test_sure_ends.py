"""A sentence ends for sure where it ends in every reading; what is doubtful is no end."""

import numpy as np
import pytest

from semblend.core.plan import Span, SpanKind
from semblend.discovery.runs import DonorRun
from semblend.planning.boundaries import Boundaries
from semblend.planning.edits import classify
from semblend.planning.policies.base import RecomputeRequest, policy_from_spec
from semblend.planning.sure_ends import ends_block, is_sure_end


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("He was sold to a farmer.", " The"),
        ("He lives in Paris.", " The"),
        ("in the year 1852.", " The"),
        ("the river.", "\n\nA road"),
        ("in the book, p. 12.", "\n\nA road"),
        ("What is it?", "\n\nNothing"),
        ("Be brief.", "<|im_end|>"),
        ("他住在巴黎。", "她"),
        ("the very end.", ""),
    ],
)
def test_ends_that_are_ends_in_every_reading(before, after):
    assert is_sure_end(before, after)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("John Richardson, a.k.a.", " The old one"),
        ("cousin of St.", " Mary"),
        ("see p. 12.", " The"),
        ("of Brown Ltd.", " By"),
        ("e.g.", " On"),
        ("approx.", " Forty"),
        ("approx.", " forty"),
        ("friend of Dr.", " Martin"),
        ("of the U.S.", " Army"),
        ("Prof.", " Hall"),
        ("z. B.", " Am"),
        ("geb. am 3.", " Mai"),
        ("bzw.", " Der"),
        ("evtl.", " Morgen"),
        ("dit M.", " le"),
        ("well ...", " Perhaps"),
        ("the Yahoo!", " Man"),
        ('who said "Wait!', " Where"),
        ("known as the farmer.", "com"),
        ("he went home.", " and"),
        (", (he laughed.)", " Later"),
        ('who said "Go home."', " Then"),
        ("## Bradorn", "\n\nThe code"),
        ("the wrapped", "\nline"),
        ("the wrapped Mr.", "\nBrown"),
        ("（山田。", "）は"),
        ("cousin of Theod.", " Mann"),
        ("the Polytechn.", " School"),
    ],
)
def test_what_is_doubtful_is_no_end(before, after):
    assert not is_sure_end(before, after)


def test_a_paragraph_ends_behind_a_sentence_and_an_empty_line_only():
    assert ends_block("the river.", "\n\nA")
    assert not ends_block("the river.", "\nA")
    assert not ends_block("Heading", "\n\nA")


WORDS = (
    "<|im_end|>", "<|im_start|>", "user", "\n", "\n\n", ".", " The", " farmer", " lives", " here",
    " St", " Mary", " Anna", " Peter", "|", " 7", " (", ")", ' "', '"', " “", "\ufffd", " 1)",
)  # fmt: skip
TEXTS = Boundaries.from_texts(WORDS)


def ids(text):
    """Token ids of words between blanks; `~` stands for a line break, `~~` for an empty line."""
    named = {"~": "\n", "~~": "\n\n"}
    found = []
    for word in text.split():
        word = named.get(word, word)
        found.append(WORDS.index(word if word in WORDS else f" {word}"))
    return np.array(found, dtype=np.int32)


def heads(text, *, kind=SpanKind.MOVED, spec="span_dependents(2, 2, 40, 12)", opens=False):
    """How many tokens of a span over all of `text` but its first are recomputed."""
    tokens = ids(text)
    span = Span(
        donor_id="d", donor_start=90, target_start=1, length=len(tokens) - 2, kind=kind, opens=opens
    )
    request = RecomputeRequest(tokens=tokens, spans=(span,), end=len(tokens) - 1, boundaries=TEXTS)
    return sum(len(run) for run in policy_from_spec(spec).runs(request))


LIVES = "lives here farmer . "


def test_a_span_that_starts_inside_a_sentence_is_recomputed_over_two_sure_ends():
    text = "Anna " + LIVES + "The " + LIVES + ("The " + LIVES) * 6
    for kind in (SpanKind.MOVED, SpanKind.BEHIND_EDIT):
        assert heads(text, kind=kind) == 4 + 5 + 2


def test_an_abbreviation_does_not_end_the_run():
    text = "Anna lives St . Mary here farmer . The " + LIVES + ("The " + LIVES) * 6
    assert heads(text) == 7 + 5 + 2


@pytest.mark.parametrize(
    ("opened", "closed"), [("(", ")"), ('"', '"'), ("“", '"'), ("\ufffd", "\ufffd"), ("( (", ") )")]
)
def test_sentences_inside_brackets_and_quotations_do_not_end_the_one_around_them(opened, closed):
    inner = ("The " + LIVES) * 3
    text = f"Anna {opened} {inner}{closed} lives here farmer . ~~ The {LIVES}" + "here " * 20
    whole = len(opened.split()) + 5 * 3 + len(closed.split()) + 4
    assert heads(text, spec="span_dependents(1, 2, 40, 40)") == whole + 2
    # They may have been opened before the span.
    text = f"{opened} Anna {inner}{closed} lives here farmer . ~~ The {LIVES}" + "here " * 20
    assert heads(text, spec="span_dependents(1, 2, 40, 40)") >= 1 + 5 * 3 + 4 + 2


def test_a_bracket_that_closes_nothing_and_one_of_another_paragraph_change_nothing():
    two = LIVES + "The " + LIVES + ("The " + LIVES) * 6
    assert heads("Anna 1) " + two) == 1 + 4 + 5 + 2
    text = "Anna ( lives here farmer . ~~ The " + two
    assert heads(text, kind=SpanKind.BEHIND_EDIT) == 5 + 6 + 2


def test_a_moved_passage_that_opens_a_paragraph_costs_the_margin():
    long = ("The " + LIVES) * 8
    assert heads("Anna . ~~ " + long) == 2 + 2
    assert heads("Anna " + long, opens=True) == 2
    # Behind an edit it depends on the line before, whatever stands between them.
    assert heads("Anna . ~~ " + long, kind=SpanKind.BEHIND_EDIT) > 2 + 2


def test_what_comes_first_in_a_turn_is_recomputed_for_one_sentence_more():
    long = ("The " + LIVES) * 8
    assert heads("Anna . <|im_end|> ~ <|im_start|> user ~ " + long) == 6 + 3 * 5 + 2
    assert heads("<|im_start|> " + long, opens=True) == 3 * 5 + 2
    endless = "The lives here farmer " * 40
    head = heads("<|im_start|> " + endless, opens=True, spec="span_dependents(2, 2, 100, 12, 30)")
    assert head == 30


def test_a_paragraph_behind_a_piece_of_a_sentence_depends_on_that_sentence():
    """The span starts inside "Anna lives here farmer.", and "He" of the next paragraph is Anna."""
    long = ("The " + LIVES) * 8
    assert heads("Anna lives here farmer . ~~ " + long) == 5 + 5 + 2


def test_a_heading_ends_nothing():
    text = "Anna ~~ The " + LIVES + ("The " + LIVES) * 6
    assert heads(text, spec="span_dependents(2, 2, 40, 20)") == 1 + 5 + 5 + 2


def test_without_sure_ends_the_limits_hold():
    rows = "| 7 lives ~ " * 30
    assert heads("Anna " + rows) == 40
    assert heads("Anna ~~ " + rows) == 12
    assert heads("Anna " + rows, kind=SpanKind.BEHIND_EDIT) == 40


@pytest.mark.parametrize(
    ("target", "donor", "opens"),
    [
        ("Anna lives here . ~~", "<|im_start|> user ~", True),
        ("Anna lives here . ~~", "Peter farmer . ~~", True),
        ("Anna lives here ~~", "Peter farmer . ~~", False),
        ("Anna lives here . ~~", "Peter farmer ~~", False),
        ("Anna lives here . ~~", "Peter farmer .", False),
        ("Anna . ~~ Peter ~~", "farmer . ~~ Mary ~~", False),
    ],
)
def test_a_span_opens_only_where_a_paragraph_begins_in_both_texts(target, donor, opens):
    passage = ids(("The " + LIVES) * 8)
    here, there = ids(target), ids(donor)
    run = DonorRun(
        donor_id="d", donor_start=len(there), target_start=len(here), length=len(passage)
    )
    (span,) = classify(
        [run],
        target=np.concatenate((here, passage)),
        donor_tokens=lambda _: np.concatenate((there, passage)),
        window=64,
        prefixes={},
        boundaries=TEXTS,
    )
    if span.kind is SpanKind.MOVED:
        assert span.opens == opens
    else:
        assert not span.opens
    inner = span.clipped(span.target_start + 3, span.target_end)
    assert not inner.opens
