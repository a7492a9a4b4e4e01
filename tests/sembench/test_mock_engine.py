"""The mock engine is honest unless told otherwise, over real HTTP."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import numpy as np
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sembench.errors import UsageError
from sembench.mock_engine import Cheat, MockFault, MockSettings
from sembench.mock_engine.answers import answer, question_of
from sembench.mock_engine.donors import MockDonorStore, StoredDonor
from sembench.mock_engine.engine import MockEngine
from sembench.mock_engine.exact_cache import ExactPrefixCache
from tests.sembench.mock_runs import mock_engine

DOCUMENT = " ".join(f"word{number}" for number in range(120))
ids = st.lists(st.integers(0, 3), min_size=1, max_size=40)


def array(values: list[int]) -> np.ndarray:
    return np.asarray(values, dtype=np.uint32)


@given(donors=st.lists(ids, max_size=3), target=ids)
def test_every_span_is_token_identical_disjoint_and_leaves_the_last_token(
    donors: list[list[int]], target: list[int]
) -> None:
    store = MockDonorStore(min_span_tokens=4, max_donors=8)
    for number, tokens in enumerate(donors):
        store.register(
            StoredDonor(donor_id=str(number), namespace="n", tokens=array(tokens), text="")
        )
    end = 0
    for span in store.find("n", array(target), 0):
        donor = donors[int(span.donor_id)]
        assert span.length >= 4
        assert (
            donor[span.donor_start : span.donor_start + span.length]
            == target[span.target_start : span.target_start + span.length]
        )
        assert span.target_start >= end
        end = span.target_start + span.length
    assert end <= len(target) - 1
    assert store.find("other namespace", array(target), 0) == ()


@given(first=ids, second=ids)
def test_an_exact_hit_is_a_common_prefix_of_whole_blocks_and_never_the_whole_prompt(
    first: list[int], second: list[int]
) -> None:
    cache = ExactPrefixCache(block_size=4, capacity_blocks=100)
    cache.insert("n", array(first))
    common = 0
    while common < min(len(first), len(second)) and first[common] == second[common]:
        common += 1
    cached = len(first) // 4 * 4
    assert cache.match("n", array(second)) == min(common, cached, len(second) - 1) // 4 * 4
    assert cache.match("other", array(second)) == 0


def test_the_cache_and_the_donors_stay_within_their_caps() -> None:
    cache = ExactPrefixCache(block_size=4, capacity_blocks=5)
    store = MockDonorStore(min_span_tokens=4, max_donors=3)
    for number in range(50):
        tokens = array(list(range(number, number + 20)))
        cache.insert("n", tokens)
        store.register(StoredDonor(donor_id=str(number), namespace="n", tokens=tokens, text=""))
    assert len(cache) == 5
    assert len(store) == 3
    assert store.find("n", array([0, 1, 2, 3, 4]), 0) == ()


def test_approximate_kv_is_neither_cached_as_exact_nor_donated() -> None:
    engine = MockEngine(MockSettings())
    engine.admit("donor", f"One instruction. {DOCUMENT}", "n")
    text = f"Quite another way to ask for it. {DOCUMENT} And then a new end to it all."
    first = engine.admit("a", text, "n")
    again = engine.admit("b", text, "n")
    assert first.said.outcome == "materialised"
    assert first.said.reused_tokens >= 100
    assert again.said.exact_tokens <= first.said.spans[0].target_start
    assert again.said.reused_tokens >= 100
    assert engine.donors == 1


def test_donors_never_cross_tenants_or_salts() -> None:
    with mock_engine() as url, httpx.Client(base_url=url, trust_env=False) as http:

        def reused(tenant: str, salt: str) -> int:
            body = {
                "messages": [{"role": "user", "content": DOCUMENT + " end?"}],
                "max_tokens": 2,
                "cache_salt": salt,
            }
            answer = http.post("/v1/chat/completions", json=body, headers={"x-tenant-id": tenant})
            report = answer.json()["semblend"]
            return int(report["exact_tokens"] + report["reused_tokens"])

        assert reused("a", "") == 0
        assert reused("a", "") > 0
        assert reused("b", "") == 0
        assert reused("a", "salt") == 0
        http.post("/flush_cache")
        assert reused("a", "") == 0


def test_the_official_client_works_against_it() -> None:
    with mock_engine(model="mock") as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        with client:
            assert [model.id for model in client.models.list()] == ["mock"]
            prompt = "The gate code of Arlen is 4711. What is the gate code of Arlen?"
            whole = client.chat.completions.create(
                model="mock",
                messages=[{"role": "user", "content": prompt}],
                max_tokens=20,
                logprobs=True,
                top_logprobs=3,
            )
            assert whole.choices[0].message.content is not None
            assert "4711" in whole.choices[0].message.content
            assert whole.choices[0].logprobs is not None
            stream = client.chat.completions.create(
                model="mock",
                messages=[{"role": "user", "content": prompt}],
                max_tokens=20,
                stream=True,
                stream_options={"include_usage": True},
            )
            chunks = list(stream)
            text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
            assert text == whole.choices[0].message.content
            assert chunks[-1].usage is not None
            legacy = client.completions.create(model="mock", prompt=prompt, max_tokens=3)
            assert legacy.choices[0].finish_reason == "length"


@pytest.mark.parametrize(
    "body", [{}, {"messages": []}, {"messages": [{"content": 3}]}, {"messages": "x"}, [1]]
)
def test_a_malformed_body_is_refused(body: object) -> None:
    with mock_engine() as url:
        answered = httpx.post(f"{url}/v1/chat/completions", json=body, trust_env=False)
        assert answered.status_code == 400
        assert answered.json()["error"]["message"]


def test_metrics_count_what_happened_even_where_responses_lie() -> None:
    with mock_engine(cheat=Cheat.CLAIM_REUSE) as url, httpx.Client(trust_env=False) as http:
        for text in (DOCUMENT, f"Another start of it. {DOCUMENT} end?"):
            body = {"prompt": text, "max_tokens": 1}
            report = http.post(f"{url}/v1/completions", json=body).json()["semblend"]
        assert report["reused_tokens"] > 100
        page = http.get(f"{url}/metrics").text
    assert 'external_prefix_cache_hits_total{model_name="mock-model"} 0.0' in page


def test_the_audit_is_on_disk_when_the_answer_arrives(tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"
    with mock_engine(audit_path=audit) as url:
        headers = {"x-request-id": "mine"}
        httpx.post(
            f"{url}/v1/completions",
            json={"prompt": "a b c?", "max_tokens": 1},
            headers=headers,
            trust_env=False,
        )
        records = [json.loads(line) for line in audit.read_text().splitlines()]
    assert {record["request_id"] for record in records} == {"mine"}
    assert records[0]["event"] == "request_first_seen"


def test_it_quotes_its_own_prompt_and_says_when_there_is_nothing_to_quote() -> None:
    prompt = (
        "The gate of Arlen opens with 1111. The gate of Borel opens with 2222.\n\n"
        "With what does the gate of Borel open?"
    )
    assert question_of(prompt).startswith("With what")
    assert "2222" in answer(prompt)
    assert "3333" in answer(prompt, evidence="The gate of Borel opens with 3333.")
    assert answer("Hello there. Who?") == "The text does not say."


@pytest.mark.parametrize(
    "settings",
    [
        {"block_size": 0},
        {"prefill_ms_per_token": -1.0},
        {"fault": MockFault.ERROR},
        {"max_donors": 0},
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        MockSettings(**settings)  # type: ignore[arg-type]
