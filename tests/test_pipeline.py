"""The facade never raises into a request, keeps namespaces apart and stays bounded."""

import doctest
import threading
from datetime import UTC, datetime, timedelta
from unittest.mock import patch

import numpy as np
import pytest

import semblend.core.namespace
import semblend.pipeline
from semblend import DeclineReason, Namespace, Outcome, SemBlendPipeline, Settings
from semblend.core.faults import planted

NAMESPACE = Namespace.of(model="m")
QUIET = Settings(embedder="none", allow_uncertified=True)


def text(size, seed):
    return np.random.default_rng(seed).integers(0, 5_000, size, dtype=np.int32)


DOCUMENT = text(800, 1)
TARGET = np.concatenate([text(60, 2), DOCUMENT, text(20, 3)])


@pytest.mark.parametrize("module", [semblend.pipeline, semblend.core.namespace])
def test_documented_examples_run(module):
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


def test_a_certificate_that_expires_while_the_process_runs_ends_reuse():
    until = datetime.now(UTC) + timedelta(days=365)
    with SemBlendPipeline(
        Settings(embedder="none"), certified_policy="none", certified_until=until
    ) as pipeline:
        pipeline.register_donor("d", DOCUMENT, NAMESPACE)
        assert pipeline.certified
        assert pipeline.plan(TARGET, NAMESPACE).executable
        with planted("clock:1:1"):
            later = pipeline.plan(TARGET, NAMESPACE)
        assert not later.executable
        assert later.reason is DeclineReason.CERTIFICATE_EXPIRED
        assert str(until) in later.detail
        with planted("clock:1:1"):
            assert not pipeline.certified
        assert pipeline.plan(TARGET, NAMESPACE).executable


@pytest.mark.parametrize(
    ("tokens", "reason"),
    [
        ([], DeclineReason.SHORT_PROMPT),
        ([1.5] * 100, DeclineReason.INVALID_INPUT),
        ([-1] * 100, DeclineReason.INVALID_INPUT),
        ([2**40] * 100, DeclineReason.INVALID_INPUT),
        (None, DeclineReason.INVALID_INPUT),
        ("hello" * 50, DeclineReason.INVALID_INPUT),
    ],
)
def test_bad_prompts_become_a_refused_plan(tokens, reason):
    pipeline = SemBlendPipeline(QUIET)
    plan = pipeline.plan(tokens, NAMESPACE)
    assert plan.reason is reason
    assert plan.detail
    assert pipeline.register_donor("d", tokens, NAMESPACE) is False


def test_an_enormous_prompt_is_planned_or_refused_without_raising():
    pipeline = SemBlendPipeline(Settings(embedder="none", max_donor_bytes=2**20))
    huge = text(2_000_000, 5)
    assert pipeline.register_donor("huge", huge, NAMESPACE) is False
    assert pipeline.plan(huge, NAMESPACE).reason is DeclineReason.NO_MATCH


def test_a_lookup_without_a_namespace_matches_nothing():
    pipeline = SemBlendPipeline(QUIET)
    pipeline.register_donor("d", DOCUMENT, NAMESPACE)
    assert pipeline.plan(TARGET, None).reason is DeclineReason.NO_NAMESPACE
    incomplete = Namespace(model="m")
    assert pipeline.plan(TARGET, incomplete).reason is DeclineReason.INCOMPLETE_NAMESPACE
    assert not pipeline.register_donor("e", DOCUMENT, None)
    assert not pipeline.register_donor("e", DOCUMENT, incomplete)


def test_donors_never_cross_a_namespace():
    pipeline = SemBlendPipeline(QUIET)
    pipeline.register_donor("d", DOCUMENT, NAMESPACE)
    for part in ("tenant", "cache_salt", "adapter", "rope", "template", "kv_dtype"):
        other = NAMESPACE.with_parts(**{part: "other"})
        plan = pipeline.plan(TARGET, other)
        assert plan.reason is DeclineReason.NO_MATCH
        assert plan.evidence.fingerprint_hits == 0
    assert pipeline.plan(TARGET, NAMESPACE).executable


def test_an_internal_fault_is_a_cold_request(monkeypatch):
    pipeline = SemBlendPipeline(QUIET)
    pipeline.register_donor("d", DOCUMENT, NAMESPACE)

    def broken(*_):
        raise RuntimeError("index on fire")

    monkeypatch.setattr(pipeline._store, "lookup", broken)
    plan = pipeline.plan(TARGET, NAMESPACE, request_id="r")
    assert plan.reason is DeclineReason.INTERNAL_ERROR
    assert pipeline.ledger.computed("r").outcome is Outcome.DECLINED
    monkeypatch.setattr(pipeline._store, "register", broken)
    assert pipeline.register_donor("e", DOCUMENT, NAMESPACE) is False


def test_evicted_donors_are_not_planned_for():
    pipeline = SemBlendPipeline(QUIET)
    pipeline.register_donor("d", DOCUMENT, NAMESPACE)
    assert pipeline.holds("d")
    assert pipeline.evict("d")
    assert not pipeline.evict("d")
    assert pipeline.plan(TARGET, NAMESPACE).reason is DeclineReason.NO_MATCH


def test_listeners_hear_of_donors_that_made_room():
    pipeline = SemBlendPipeline(Settings(embedder="none", max_donor_bytes=2**17))
    heard = []
    pipeline.add_eviction_listener(heard.append)
    for number in range(40):
        pipeline.register_donor(f"d{number}", text(1_000, number), NAMESPACE)
    assert heard == [f"d{number}" for number in range(len(heard))]
    assert heard
    assert pipeline.stats().donors == 40 - len(heard)


def test_a_request_is_opened_in_the_ledger_and_materialised_only_on_confirmation():
    pipeline = SemBlendPipeline(QUIET)
    pipeline.register_donor("d", DOCUMENT, NAMESPACE)
    plan = pipeline.plan(TARGET, NAMESPACE, request_id="r")
    totals = pipeline.stats().ledger
    assert totals.open_requests == 1
    assert totals.tokens[Outcome.MATERIALISED] == 0
    pipeline.ledger.confirm("r", materialised_tokens=plan.reused_tokens)
    assert pipeline.stats().ledger.tokens[Outcome.MATERIALISED] == plan.reused_tokens


def test_find_donor_names_the_donor_with_the_most_shared_tokens():
    pipeline = SemBlendPipeline(QUIET)
    pipeline.register_donor("small", text(100, 7), NAMESPACE)
    pipeline.register_donor("large", DOCUMENT, NAMESPACE)
    target = np.concatenate([text(50, 8), text(100, 7), text(9, 9), DOCUMENT, text(5, 4)])
    match = pipeline.find_donor(target, NAMESPACE)
    assert match.donor_id == "large"
    assert match.shared_tokens == 796  # without the donor's four sink tokens
    assert pipeline.find_donor(text(500, 99), NAMESPACE) is None


FACTS = (
    "The lighthouse of Vellmar was built by the harbour council. Its lamp is visible for "
    "twenty miles and is tended by the keeper, who writes down every passing ship. "
) * 8
OTHER = (
    "Photosynthesis turns light into chemical energy inside chloroplasts. Pigments absorb "
    "red and blue light while green is reflected by the leaf of the plant. "
) * 8


def words(prompt):
    known = {}
    return [known.setdefault(word, len(known)) for word in prompt.split()]


def test_donors_found_by_meaning_are_evidence_and_never_reused():
    with SemBlendPipeline(Settings(embedder="jaccard", allow_uncertified=True)) as pipeline:
        pipeline.register_donor("light", text(300, 1), NAMESPACE, text=FACTS)
        pipeline.register_donor("plant", text(300, 2), NAMESPACE, text=OTHER)
        assert pipeline.wait_until_learned()
        match = pipeline.find_donor(text(300, 3), NAMESPACE, text=FACTS + " Summarise this.")
        assert match.donor_id == "light"
        assert match.similarity > 0.6
        assert match.shared_tokens == 0
        assert not match.plan.spans
        assert match.plan.outcome is Outcome.COLD


def test_meaning_never_crosses_a_namespace_and_forgets_evicted_donors():
    with SemBlendPipeline(Settings(embedder="jaccard")) as pipeline:
        pipeline.register_donor("light", text(300, 1), NAMESPACE, text=FACTS)
        assert pipeline.wait_until_learned()
        other = NAMESPACE.with_parts(tenant="other")
        assert pipeline.find_donor(text(300, 3), other, text=FACTS) is None
        pipeline.evict("light")
        assert pipeline.stats().embedded_donors == 0
        assert pipeline.find_donor(text(300, 3), NAMESPACE, text=FACTS) is None


def heavily_edited(tokens, every=24):
    edited = tokens.copy()
    edited[::every] = 4_999
    return edited


def test_fuzzy_chunks_find_runs_too_short_for_a_fingerprint():
    donor = text(960, 1) % 4_998
    target = np.concatenate([text(30, 9), heavily_edited(donor), text(9, 8)])
    for fuzzy in (False, True):
        settings = Settings(
            embedder="jaccard",
            fuzzy_chunks=fuzzy,
            exact_materialization_only=not fuzzy,
            allow_uncertified=True,
            recompute_policy="none",
        )
        with SemBlendPipeline(settings) as pipeline:
            pipeline.register_donor("d", donor, NAMESPACE, text=FACTS)
            pipeline.wait_until_learned()
            match = pipeline.find_donor(target, NAMESPACE, text=FACTS)
            assert bool(match.plan.spans) is fuzzy
            for span in match.plan.spans:
                assert (
                    donor[span.donor_start : span.donor_end]
                    == target[span.target_start : span.target_end]
                ).all()
            # Similar but not identical text is shown where it was asked for, and never a span.
            assert bool(match.plan.evidence.similar_regions) is fuzzy


def test_the_default_embedder_never_delays_building_a_pipeline():
    pipeline = SemBlendPipeline(Settings())
    assert pipeline.stats().embedder == "minilm"
    assert pipeline._meaning._embedder is None
    pipeline.close()


def test_threads_register_plan_and_evict_without_harm():
    pipeline = SemBlendPipeline(Settings(embedder="none", max_donor_bytes=2**18))
    faults = []

    def work(offset):
        try:
            for number in range(offset, 120, 3):
                donor = text(700, number)
                pipeline.register_donor(f"d{number}", donor, NAMESPACE)
                plan = pipeline.plan(np.concatenate([text(30, 999), donor]), NAMESPACE)
                assert plan.reason is not DeclineReason.INTERNAL_ERROR
                if number % 4 == 0:
                    pipeline.evict(f"d{number}")
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=work, args=(offset,)) for offset in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    assert pipeline.stats().index_bytes <= 2**18


def test_nothing_is_looked_up_for_a_prompt_that_is_in_place():
    """The next turn of a conversation: its few new tokens hold no run."""
    pipeline = SemBlendPipeline(QUIET)
    pipeline.register_donor("d", DOCUMENT, NAMESPACE)
    prompt = np.concatenate((DOCUMENT[100:600], DOCUMENT[:31]))

    def looked(**placed):
        with patch.object(pipeline._store, "lookup", wraps=pipeline._store.lookup) as lookup:
            plan = pipeline.plan(prompt, NAMESPACE, **placed)
        return lookup.called, plan.reason

    assert looked(exact_tokens=500) == (False, DeclineReason.NO_MATCH)
    assert looked(exact_tokens=16, continued_tokens=484) == (False, DeclineReason.NO_MATCH)
    assert looked(exact_tokens=498)[0], "33 tokens hold one, with the one that stays"
    assert looked() == (True, None)
