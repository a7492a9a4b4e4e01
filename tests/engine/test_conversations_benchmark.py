"""The benchmark of conversations runs, and its counts hold on the bundled model."""

from __future__ import annotations

import json

import pytest
from benchmarks.conversations.__main__ import main
from benchmarks.conversations.stories import agent


def test_no_turn_of_a_chat_computes_more_than_a_prefix_cache(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main(["--only", "chat", "--conversations", "1", "--turns", "3", "--length", "400", "--json"])
    rows = json.loads(capsys.readouterr().out)["rows"]
    found = {(row["case"], row["metric"]): row for row in rows}
    assert found["chat", "worst turn against the prefix cache"]["value"] <= 1.0
    assert found["chat", "all turns against the prefix cache"]["value"] < 0.5
    assert found["chat", "right answers lost against cold"]["value"] == 0.0
    assert found["chat", "memory of chains"]["ok"]
    assert found["chat", "answers"]["value"] == 3
    first = [row["value"] for row in rows if row["metric"] == "computed tokens, turn 1"]
    assert first[0] < 0.3 * first[1], "the document was reused"


def test_an_agent_compacts_as_often_as_it_was_told() -> None:
    story = agent(0, threshold=1500, compactions=2, count=4)
    question, kinds = next(story), []
    try:
        while True:
            kinds.append(question.kind)
            question = story.send("said " * 10)
    except StopIteration:
        pass
    assert kinds.count("summary") == 2
    assert kinds[-1] == "step"
