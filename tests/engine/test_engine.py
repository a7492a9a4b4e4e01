"""The engine as callers see it: outcomes, equality with cold, and what never happens."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from semblend.core.errors import RequestError
from semblend.core.namespace import Namespace
from semblend.core.outcomes import DeclineReason, Outcome
from semblend.core.settings import EmbedderKind, Settings
from semblend.engine.api import FinishReason, TokenSource
from tests.engine.conftest import EngineMaker, same
from tests.engine.models import ARCHITECTURES, plain_logits, random_tokens, tiny

DOCUMENT = random_tokens(160, 50)


def behind(head: int, tail: int = 12) -> np.ndarray:
    """The document behind a new instruction, with a new question."""
    return np.concatenate((random_tokens(20, head), DOCUMENT, random_tokens(tail, head + 1)))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_cold_request_answers_as_plain_transformers(
    architecture: str, make_engine: EngineMaker
) -> None:
    driver = make_engine(architecture)
    prompt = random_tokens(70, 4)
    result = driver.run(prompt, max_tokens=6)
    tokens = prompt
    for event in result.events:
        expected = torch.log_softmax(plain_logits(tiny(architecture)[1], tokens), dim=-1)
        assert event.token_id == int(expected.argmax())
        assert event.logprob == pytest.approx(float(expected.max()), abs=1e-4)
        tokens = np.append(tokens, np.int32(event.token_id))
    assert result.reason is FinishReason.LENGTH
    assert result.report.outcome is Outcome.COLD
    assert result.report.reason is DeclineReason.NO_MATCH


def test_a_document_behind_a_new_instruction_is_reused_and_reported(
    make_engine: EngineMaker,
) -> None:
    driver = make_engine()
    first = driver.run(behind(1))
    warm = driver.run(behind(5))
    report = warm.report
    assert report.outcome is Outcome.MATERIALISED
    assert report.reused_tokens >= 155
    assert report.computed_tokens == report.prompt_tokens - report.reused_tokens
    assert report.donor_ids[0].startswith(first.report.request_id)
    assert not report.certified
    assert [segment.source for segment in report.strip] == [
        TokenSource.COMPUTED,
        TokenSource.REUSED,
        TokenSource.COMPUTED,
    ]
    assert report.strip[0].start == 0
    assert report.strip[-1].end == report.prompt_tokens
    assert report.ttft_ms > 0
    totals = driver.engine.pipeline.ledger.totals()
    assert totals.tokens[Outcome.MATERIALISED] == report.reused_tokens
    stats = driver.engine.stats()
    assert stats.tokens["reused"] == report.reused_tokens
    assert stats.donors == 1
    assert stats.tier_bytes["host"] > 0


def test_recomputing_everything_equals_cold(make_engine: EngineMaker) -> None:
    driver = make_engine()
    driver.run(behind(1))
    warm = driver.run(behind(5), policy="all")
    assert warm.report.reused_tokens == 0
    assert same(warm, driver.cold(behind(5)))


def test_a_prefix_is_served_exactly_and_equals_cold(make_engine: EngineMaker) -> None:
    driver = make_engine()
    driver.run(behind(1))
    prompt = np.concatenate((behind(1)[:100], random_tokens(20, 77)))
    warm = driver.run(prompt)
    assert warm.report.exact_tokens == 96  # whole pages of 8
    assert warm.report.outcome is Outcome.EXACT_PREFIX
    assert same(warm, driver.cold(prompt))


def test_a_prefix_whose_pages_are_gone_is_reused_from_its_donor_and_stays_exact(
    make_engine: EngineMaker,
) -> None:
    driver = make_engine()
    driver.run(behind(1))
    driver.engine.flush_prefix_cache()
    prompt = np.concatenate((behind(1)[:150], random_tokens(20, 77)))
    warm = driver.run(prompt)
    assert warm.report.outcome is Outcome.MATERIALISED
    assert same(warm, driver.cold(prompt), 1e-4)
    assert len(driver.engine.donors) == 2  # not tainted, so a donor itself


def test_approximate_pages_are_never_served_as_exact(make_engine: EngineMaker) -> None:
    driver = make_engine()
    driver.run(behind(1))
    warm = driver.run(behind(5))
    again = driver.run(behind(5))
    assert warm.report.reused_tokens > 0
    # Only the pages before the first reused token are exact: 20 tokens are two full pages.
    assert again.report.exact_tokens == 16
    assert len(driver.engine.donors) == 1  # the tainted request did not become a donor


def test_a_request_that_may_not_donate_leaves_nothing_behind(make_engine: EngineMaker) -> None:
    driver = make_engine()
    driver.run(behind(1), donate=False)
    assert len(driver.engine.donors) == 0
    assert driver.run(behind(1), donate=False).report.outcome is Outcome.COLD


def test_namespaces_share_neither_prefixes_nor_donors(make_engine: EngineMaker) -> None:
    driver = make_engine()
    engine = driver.engine
    driver.run(behind(1), namespace=engine.namespace(tenant="a"))
    for other in (
        engine.namespace(tenant="b"),
        engine.namespace(tenant="a", template="t"),
        engine.namespace(tenant="a", cache_salt="s"),
        engine.namespace(tenant="a", cache_salt="none"),
    ):
        report = driver.run(behind(1), namespace=other, donate=False).report
        assert (report.exact_tokens, report.reused_tokens) == (0, 0)
    assert driver.run(behind(1), namespace=engine.namespace(tenant="a")).report.exact_tokens > 0


def test_an_incomplete_namespace_shares_with_nobody(make_engine: EngineMaker) -> None:
    driver = make_engine()
    for _ in range(2):
        report = driver.run(behind(1), namespace=Namespace(model="m")).report
        assert report.reason is DeclineReason.INCOMPLETE_NAMESPACE
        assert report.exact_tokens == 0
    assert len(driver.engine.donors) == 0


def test_without_a_certificate_spans_are_found_and_not_loaded(make_engine: EngineMaker) -> None:
    driver = make_engine(settings=Settings(embedder=EmbedderKind.NONE))
    driver.run(behind(1))
    warm = driver.run(behind(5))
    assert warm.report.outcome is Outcome.DISCOVERY_ONLY
    assert warm.report.reason is DeclineReason.NO_CERTIFICATE
    assert warm.report.reused_tokens == 0
    assert same(warm, driver.cold(behind(5)))


def test_concurrent_requests_answer_as_alone(make_engine: EngineMaker) -> None:
    driver = make_engine(step_tokens=50)
    driver.run(behind(1))
    prompts = [behind(n, tail=n) for n in range(5, 11)] + [random_tokens(n, n) for n in (1, 9, 90)]
    alone = [driver.run(prompt, donate=False, max_tokens=9) for prompt in prompts]
    handles = [driver.submit(prompt, donate=False, max_tokens=9) for prompt in prompts]
    for handle, expected in zip(handles, alone, strict=True):
        result = handle.result()
        assert same(result, expected)
        assert result.report.reused_tokens == expected.report.reused_tokens


def test_sampling_depends_on_the_seed_alone(make_engine: EngineMaker) -> None:
    driver = make_engine()
    prompt = random_tokens(30, 8)
    options = {"temperature": 1.5, "seed": 7, "max_tokens": 12, "donate": False}
    alone = driver.run(prompt, **options)
    crowd = [driver.submit(random_tokens(40, n), temperature=1.0, seed=n) for n in range(5)]
    assert driver.run(prompt, **options).token_ids == alone.token_ids
    assert driver.run(prompt, **{**options, "seed": 8}).token_ids != alone.token_ids
    for handle in crowd:
        handle.result()


def test_unservable_requests_are_refused_by_name(make_engine: EngineMaker) -> None:
    driver = make_engine(pool_bytes=tiny("llama-gqa")[0].kv_shape.token_bytes * 64)
    with pytest.raises(RequestError, match="1 to 64 tokens"):
        driver.submit(random_tokens(65, 1))
    with pytest.raises(RequestError, match="1 to 64 tokens"):
        driver.submit(np.empty(0, dtype=np.int32))
    with pytest.raises(RequestError, match="ids below 97"):
        driver.submit(np.array([97], dtype=np.int32))
    handle = driver.submit(random_tokens(8, 1), request_id="twice", max_tokens=50)
    with pytest.raises(RequestError, match="'twice'"):
        driver.submit(random_tokens(8, 1), request_id="twice")
    handle.result()
    driver.run(random_tokens(8, 1), request_id="twice")


def test_token_ids_of_any_integer_type_are_the_same_prompt(make_engine: EngineMaker) -> None:
    driver = make_engine()
    driver.run(behind(1))
    assert driver.run(behind(1).astype(np.int64)).report.exact_tokens > 0


def test_a_full_queue_refuses_more(make_engine: EngineMaker) -> None:
    driver = make_engine(max_running=1, max_waiting=2)
    handles, refused = [], 0
    for n in range(12):
        try:
            handles.append(driver.submit(random_tokens(100, n), max_tokens=40))
        except RequestError:
            refused += 1
    assert refused > 0
    assert all(handle.result().reason is FinishReason.LENGTH for handle in handles)


def test_output_ends_at_the_context_window(make_engine: EngineMaker) -> None:
    driver = make_engine()
    result = driver.run(random_tokens(505, 3), max_tokens=50)
    assert len(result.token_ids) == 512 - 505
    assert result.reason is FinishReason.LENGTH


def test_closing_ends_every_request(make_engine: EngineMaker) -> None:
    driver = make_engine(max_running=2)
    handles = [driver.submit(random_tokens(50, n), max_tokens=400) for n in range(6)]
    driver.engine.donors.wait()
    driver.engine._worker.close()
    assert {handle.result().reason for handle in handles} <= {
        FinishReason.CANCELLED,
        FinishReason.LENGTH,
    }
    with pytest.raises(RequestError, match="closing"):
        driver.submit(random_tokens(5, 1))


def test_where_nothing_may_be_loaded_no_kv_is_kept_and_what_could_be_saved_is_counted(
    make_engine: EngineMaker,
) -> None:
    discovery = Settings(
        embedder=EmbedderKind.NONE, certificate_dir="none", recompute_policy="none", shadow_rate=0.0
    )
    driver = make_engine(settings=discovery)
    driver.run(behind(1))
    found = driver.run(behind(5)).report
    assert found.outcome is Outcome.DISCOVERY_ONLY
    assert sum(end - start for start, end in found.found) >= 155
    assert found.computed_tokens == found.prompt_tokens
    stats = driver.engine.stats()
    assert stats.donors == 2
    assert not any(stats.tier_bytes.values()), "K/V that may not be loaded is not kept"
    assert driver.engine.donors.inventory() == [], "and nobody is told that it could be"
    (last,) = driver.engine.pipeline.ledger.recent()[-1:]
    assert last.reusable_tokens == sum(end - start for start, end in found.found)
    assert driver.engine.drop_donors() == 2
