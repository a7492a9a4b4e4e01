"""Rows: what was not said stays null, and poison and leaks are told from noise."""

from __future__ import annotations

from typing import Any

import pytest

from sembench.live.reply import Reply
from sembench.live.reply_rows import RowMaker, contaminated, leak, mean_kl
from sembench.model import DonorPrompt, ManifestItem
from sembench.tokenizers import StableRegexTokenizer

MAKER = RowMaker(tokenizer=StableRegexTokenizer(), block_size=16)


def item(**fields: Any) -> ManifestItem:
    base: dict[str, Any] = {
        "item_id": "i",
        "dataset": "d",
        "source_id": "s",
        "transform": "t",
        "donor_prompts": (DonorPrompt(donor_id="x", text="donor words", label="l"),),
        "recipient_prompt": "The code of Arlen is 4711. " + "word " * 94,
        "answers": ("4711",),
        "metadata": {"divergent_donor_value": "8822"},
    }
    return ManifestItem(**{**base, **fields})


def reply(text: str = "It is 4711.", **fields: Any) -> Reply:
    base: dict[str, Any] = {"ttft_ms": 10.0, "latency_ms": 20.0, "prompt_tokens": 100}
    return Reply(request_id="r", text=text, **{**base, **fields})


def test_a_silent_backend_leaves_every_confirmation_null() -> None:
    row = MAKER.row(item(), arm="single", reply=reply(prompt_tokens=None))
    assert row.backend_confirmed_blocks is None
    assert row.backend_confirmed_lift is None
    assert row.claimed_reuse_tokens is None
    assert row.quality_pass is True
    assert row.prompt_tokens == 101


def test_a_failed_request_has_no_times_and_fails_the_quality_question() -> None:
    row = MAKER.row(item(), arm="single", reply=reply(error="HTTP 500"))
    assert (row.ttft_ms, row.latency_ms, row.output_text) == (None, None, None)
    assert row.quality_pass is False
    assert row.donor_fact_leak is None


def test_a_failed_donor_is_the_rows_error() -> None:
    row = MAKER.row(item(), arm="single", reply=reply(), donors=[reply(), reply(error="gone")])
    assert row.error == "donor 1: gone"


@pytest.mark.parametrize(
    ("engine_tokens", "cached", "blocks"),
    [
        (101, 64, 4),
        (120, 64, 4),
        # Another tokenizer: half of the engine's 202 tokens are half of the client's blocks.
        (202, 101, 3),
        (50, 50, 6),
    ],
)
def test_blocks_are_the_clients_whatever_the_engine_counts_in(
    engine_tokens: int, cached: int, blocks: int
) -> None:
    row = MAKER.row(
        item(), arm="single", reply=reply(prompt_tokens=engine_tokens, cached_tokens=cached)
    )
    assert row.backend_confirmed_blocks == blocks
    assert row.backend_confirmed_block_rate is not None
    assert row.backend_confirmed_block_rate <= 1.0


@pytest.mark.parametrize(
    ("text", "verdict"),
    [("It is 8822.", True), ("It is 4711.", False), ("Neither.", False)],
)
def test_a_leak_is_the_donors_value_in_the_answer(text: str, verdict: bool) -> None:
    assert leak(item(), reply(text)) is verdict
    assert leak(item(metadata={}), reply(text)) is None


def test_one_foreign_word_of_the_donors_value_is_enough() -> None:
    two_words = item(metadata={"divergent_donor_value": "Arlen 8822"})
    assert leak(two_words, reply("8822")) is True
    # "Arlen" stands in the prompt itself and proves nothing.
    assert leak(two_words, reply("Arlen")) is False


WARM = {"exact_tokens": 16, "reused_tokens": 64, "cached_tokens": 80}


@pytest.mark.parametrize(
    ("warm", "repeat", "cold", "verdict"),
    [
        # 64 of 100 tokens were reused: at most 36 can be exact afterwards.
        (WARM, {"exact_tokens": 37, "cached_tokens": 37}, None, True),
        (WARM, {"exact_tokens": 36, "cached_tokens": 100, "reused_tokens": 64}, None, False),
        # Nothing was reused: whatever is cached is exact, however the answer reads.
        ({"exact_tokens": 0, "reused_tokens": 0}, {"exact_tokens": 99, "text": "odd"}, {}, False),
        # A backend that does not tell the two apart is judged by its answers.
        ({"cached_tokens": 80}, {"cached_tokens": 96, "text": "It is 8822."}, {}, True),
        ({"cached_tokens": 80}, {"cached_tokens": 96, "text": "Surely 4711!"}, {}, False),
        ({"cached_tokens": 80}, {"cached_tokens": 96, "text": "no idea"}, {"text": "nor I"}, False),
        ({"cached_tokens": 80}, {"cached_tokens": 96}, None, None),
        (WARM, {"error": "gone"}, {}, None),
    ],
)
def test_poison_is_seen_in_numbers_or_answers_and_noise_is_not_poison(
    warm: dict[str, Any],
    repeat: dict[str, Any],
    cold: dict[str, Any] | None,
    verdict: bool | None,
) -> None:
    before = None if cold is None else reply(**cold)
    assert contaminated(item(), reply(**warm), reply(**repeat), before) is verdict


def test_without_answers_another_text_is_the_sign() -> None:
    bare = item(answers=(), metadata={})
    warm, cold = reply(cached_tokens=80), reply("one two three four")
    other = reply("five six seven", cached_tokens=96)
    assert contaminated(bare, warm, other, cold) is True
    same = reply("one two three", cached_tokens=96)
    assert contaminated(bare, warm, same, cold) is False


def test_divergence_is_taken_while_both_arms_read_the_same_text() -> None:
    same, apart = {"a": -0.1, "b": -2.5}, {"b": -0.1, "a": -2.5}
    cold = reply(top_logprobs=(same, same, same))
    assert mean_kl(cold, cold) == 0.0
    early = mean_kl(cold, reply(top_logprobs=(same, apart, same)))
    late = mean_kl(cold, reply(top_logprobs=(same, apart, apart)))
    # After the arms part, positions are of different texts and do not count.
    assert early == late
    assert early is not None
    assert early > 0
    assert mean_kl(cold, reply()) is None
