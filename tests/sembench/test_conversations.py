"""The conversation generator: every kind of turn is what its name says, by seed and index alone."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest

from sembench.blocks import ProposedSpan
from sembench.conversations import Limits, Turn, TurnKind, load_story, scripted_turns
from sembench.conversations.measuring import EarlierRequests
from sembench.conversations.rendering import prompt_of
from sembench.errors import PlannerError, UsageError
from sembench.planners import PlannerSettings, make_planner
from sembench.tokenizers import load_tokenizer

PROFILES = ("agent", "chat")


def turns(profile: str, *, seed: int = 3, index: int = 0, **limits: int) -> list[Turn]:
    story = load_story(profile, seed=seed, index=index, limits=Limits(**limits))
    return list(scripted_turns(story))


def text_of(profile: str, **more: int) -> str:
    return json.dumps([turn.to_dict() for turn in turns(profile, **more)])


@pytest.mark.parametrize("profile", PROFILES)
def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(profile: str) -> None:
    assert text_of(profile) == text_of(profile)
    assert text_of(profile) != text_of(profile, seed=4)
    assert text_of(profile) != text_of(profile, index=1)


def test_an_agent_run_holds_two_compactions_edits_both_forks_and_repeated_retrieval() -> None:
    kinds = Counter(turn.kind for turn in turns("agent"))
    assert kinds[TurnKind.COMPACTED] == kinds[TurnKind.SUMMARY] == 2
    assert kinds[TurnKind.FORK] >= 2
    assert kinds[TurnKind.EDIT] >= 1
    assert kinds[TurnKind.RETRIEVAL] >= 3
    assert kinds[TurnKind.TOOL_RESULT] >= 1


def test_a_chat_has_ten_turns_with_an_edit_a_new_date_and_a_document_that_comes_back() -> None:
    kinds = [turn.kind for turn in turns("chat")]
    assert len(kinds) == 10
    assert {TurnKind.EDIT, TurnKind.NEW_DATE, TurnKind.RETRIEVAL} <= set(kinds)


@pytest.mark.parametrize("profile", PROFILES)
def test_a_follow_up_changes_nothing_before_it(profile: str) -> None:
    before: dict[str, Turn] = {}
    seen = 0
    for turn in turns(profile):
        if turn.kind is TurnKind.FOLLOW_UP and turn.branch in before:
            earlier = before[turn.branch].messages
            assert turn.messages[: len(earlier)] == earlier
            seen += 1
        before[turn.branch] = turn
    assert seen >= 3


@pytest.mark.parametrize("profile", PROFILES)
def test_an_edit_changes_one_earlier_message_and_keeps_those_behind_it(profile: str) -> None:
    before: Turn | None = None
    edits = 0
    for turn in turns(profile):
        if turn.kind is TurnKind.EDIT:
            assert before is not None
            pairs = zip(turn.messages, before.messages, strict=False)
            changed = [index for index, (now, then) in enumerate(pairs) if now != then]
            assert len(changed) == 1
            assert 0 < changed[0] < len(before.messages) - 1
            edits += 1
        before = turn if turn.branch == "main" else before
    assert edits


def test_retrieval_returns_a_passage_that_an_earlier_request_of_the_run_held() -> None:
    held: list[str] = []
    for turn in turns("agent"):
        results = [message.content or "" for message in turn.messages if message.role == "tool"]
        if turn.kind is TurnKind.RETRIEVAL:
            passages = [part for part in results[-1].split("\n[") if part]
            assert any(passage.split("]\n")[1].strip() in "".join(held) for passage in passages)
        held.extend(results)


def test_compaction_keeps_the_system_text_the_summary_and_the_last_messages() -> None:
    before: Turn | None = None
    for turn in turns("agent"):
        if turn.kind is TurnKind.COMPACTED:
            assert before is not None
            assert before.kind is TurnKind.SUMMARY
            assert turn.messages[0] == before.messages[0]
            assert before.answer.text in (turn.messages[1].content or "")
            # Behind head and acknowledgement, up to the new user message: the kept tail.
            tail = turn.messages[3:-1]
            assert len(tail) >= 4
            assert tail == before.messages[-1 - len(tail) : -1]
        before = turn


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("index", [0, 1])
def test_every_tool_result_follows_its_call(profile: str, index: int) -> None:
    for turn in turns(profile, index=index):
        called: set[str] = set()
        for message in turn.messages:
            if message.role == "tool":
                assert message.tool_call_id in called
            called |= {call.call_id for call in message.tool_calls}
            assert (message.content is None) == bool(message.tool_calls)


def test_thinking_is_decoded_and_not_sent_back() -> None:
    thinking = [turn for turn in turns("chat", index=1) if turn.answer.thinking]
    assert thinking
    for turn in thinking:
        assert turn.answer.thinking in turn.answer.decoded
    assert "<think>" not in text_of("chat", index=0)
    for turn in turns("chat", index=1):
        assert not any("<think>" in message.text for message in turn.messages)


def test_a_live_answer_goes_into_the_history_without_its_thinking() -> None:
    story = load_story("chat", seed=3, index=0).play()
    next(story)
    second = story.send("<think>\nlet me see\n</think>\n\nForty-two.")
    assert second.messages[2].content == "Forty-two."


def test_every_expected_answer_stands_in_the_prompt_that_asks_for_it() -> None:
    asked = 0
    for profile in PROFILES:
        for turn in turns(profile):
            for answer in turn.expected:
                assert answer in prompt_of(turn)
                asked += 1
    assert asked > 20


def test_an_unknown_profile_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="--profile: 'chats' is not one of agent, chat"):
        load_story("chats", seed=0, index=0)


def reuse_of(profile: str, planner: str) -> list[tuple[Turn, int, int, int]]:
    tokenizer = load_tokenizer(None)
    settings = PlannerSettings(block_size=16, tokenizer=tokenizer.name)
    known = EarlierRequests(
        block_size=16, tokenizer=tokenizer.name, planner=make_planner(planner, settings)
    )
    rows = []
    for turn in turns(profile):
        prompt = tokenizer.encode(prompt_of(turn))
        found = known.measure(turn.turn_id, prompt)
        answer = tokenizer.encode(turn.answer.decoded)
        known.remember(turn.turn_id, np.concatenate([prompt, answer]))
        assert found.planned_tokens is not None
        rows.append((turn, found.prefix_tokens, found.planned_tokens, found.oracle_tokens))
    return rows


@pytest.mark.parametrize("profile", PROFILES)
def test_no_planner_finds_more_than_the_oracle_or_less_than_the_prefix(profile: str) -> None:
    for turn, prefix, planned, oracle in reuse_of(profile, "semblend"):
        assert prefix <= planned <= oracle + 16 * 4, turn.turn_id
        if turn.kind in (TurnKind.EDIT, TurnKind.NEW_DATE, TurnKind.COMPACTED):
            # What a prefix cache loses there is what the profiles are for.
            assert planned > prefix


def test_a_planner_that_lies_is_found_out() -> None:
    class Liar:
        def register(self, donor: object) -> None: ...
        def forget(self, donor_id: str) -> None: ...
        def plan(self, request: object) -> list[ProposedSpan]:
            return [ProposedSpan(donor_id="a", donor_start=0, target_start=1, length=8)]

        def describe(self) -> dict[str, str]:
            return {}

    known = EarlierRequests(block_size=4, tokenizer="t", planner=Liar())  # type: ignore[arg-type]
    known.remember("a", np.arange(20, dtype=np.uint32))
    with pytest.raises(PlannerError, match="not a copy"):
        known.measure("b", np.arange(20, dtype=np.uint32))
