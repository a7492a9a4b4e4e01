"""Moved text is told from edited text by what stands before it."""

import numpy as np
import pytest

from semblend.core.namespace import Namespace
from semblend.core.plan import SpanKind
from semblend.core.settings import Settings
from semblend.pipeline import SemBlendPipeline

NAMESPACE = Namespace.of(model="m")


def text(size, seed):
    return np.random.default_rng(seed).integers(0, 30_000, size, dtype=np.int32)


def kinds(donor, target, **plan_options):
    pipeline = SemBlendPipeline(
        Settings(embedder="none", allow_uncertified=True, recompute_policy="none")
    )
    pipeline.register_donor("d", donor, NAMESPACE)
    plan = pipeline.plan(target, NAMESPACE, **plan_options)
    return [(span.kind, span.edit_tokens) for span in plan.spans]


MOVED, EDIT, PREFIX = SpanKind.MOVED, SpanKind.BEHIND_EDIT, SpanKind.PREFIX


def test_a_document_behind_another_instruction_is_moved():
    document = text(500, 1)
    target = np.concatenate([text(80, 3), document, text(9, 4)])
    assert kinds(np.concatenate([text(60, 2), document]), target) == [(MOVED, 0)]


def test_the_start_of_the_same_prompt_is_an_exact_prefix():
    document = text(500, 1)
    assert kinds(document, np.concatenate([document, text(9, 4)])) == [(PREFIX, 0)]


def test_an_exact_prefix_stays_exact_where_the_engines_cache_ends():
    document = text(500, 1)
    target = np.concatenate([document, text(9, 4)])
    assert kinds(document, target, exact_tokens=256) == [(PREFIX, 0)]


@pytest.mark.parametrize(
    ("removed", "inserted"), [(1, 1), (3, 5), (0, 4), (4, 0), (40, 2), (2, 40)]
)
def test_what_follows_a_replaced_inserted_or_deleted_text_is_behind_an_edit(removed, inserted):
    document = text(600, 1)
    edited = np.concatenate([document[:300], text(inserted, 9), document[300 + removed :]])
    target = np.concatenate([text(70, 3), edited, text(9, 4)])
    found = kinds(np.concatenate([text(60, 2), document]), target)
    assert found == [(MOVED, 0), (EDIT, max(removed, inserted))]


def test_an_edit_near_the_start_of_a_document_is_seen_without_a_run_before_it():
    """The title changed: too little before it is identical to be a span of its own."""
    document = text(500, 1)
    edited = document.copy()
    edited[20] = 31_000
    target = np.concatenate([text(70, 3), edited, text(9, 4)])
    donor = np.concatenate([text(60, 2), document])
    ((kind, _),) = kinds(donor, target)
    assert kind is EDIT


def test_passages_in_another_order_are_moved():
    passages = [text(200, seed) for seed in range(5)]
    donor = np.concatenate([text(30, 20), *passages])
    target = np.concatenate([text(40, 21), *(passages[i] for i in (3, 1, 4, 0, 2)), text(9, 4)])
    assert kinds(donor, target) == [(MOVED, 0)] * 5


def test_neighbouring_sentences_exchanged_are_behind_an_edit():
    """Order of facts: the two came from one neighbourhood and now say it the other way round."""
    before, one, two, after = text(200, 1), text(40, 2), text(40, 3), text(200, 4)
    donor = np.concatenate([text(30, 9), before, one, two, after])
    target = np.concatenate([text(35, 8), before, two, one, after, text(9, 7)])
    found = [kind for kind, _ in kinds(donor, target)]
    # The exchanged sentences and what follows them; `before` itself only moved.
    assert found[0] is MOVED
    assert found[1:] == [EDIT] * 3
