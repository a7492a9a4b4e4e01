"""A grammar binds its own answer and, when it fails, costs nobody else's."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from semblend.core.errors import RequestError
from semblend.engine.api import FinishReason
from semblend.engine.output.json_grammar import LONGEST_SCHEMA
from tests.engine.conftest import EngineMaker
from tests.engine.models import random_tokens


class _Two:
    """Lets token 5 through, then token 6, then is complete; or fails instead."""

    def __init__(self, *, fails: bool) -> None:
        self._fails = fails
        self._taken: list[int] = []

    def allowed(self) -> torch.Tensor:
        if self._fails and self._taken:
            raise RequestError("no token fits")
        mask = torch.zeros(self.vocabulary, dtype=torch.bool)
        mask[5 + len(self._taken)] = True
        return mask

    def take(self, token_id: int) -> bool:
        self._taken.append(token_id)
        return len(self._taken) == 2

    vocabulary = 0


@pytest.mark.parametrize("fails", [False, True])
def test_a_grammar_decides_its_own_answer_and_a_failing_one_ends_it_alone(
    make_engine: EngineMaker, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    driver = make_engine()
    prompt = random_tokens(40, seed=1)
    free = driver.run(prompt, max_tokens=8, reuse=False)
    _Two.vocabulary = driver.engine.model.vocab_size
    grammars: Any = driver.engine._grammars
    monkeypatch.setattr(grammars, "of_schema", lambda _: _Two(fails=fails))
    bound = driver.submit(prompt, max_tokens=8, json_schema="{}", reuse=False)
    beside = driver.submit(prompt, max_tokens=8, reuse=False)
    result = bound.result()
    if fails:
        assert result.reason is FinishReason.ERROR
        assert result.token_ids == (5,)
    else:
        assert result.reason is FinishReason.STOP
        assert result.token_ids == (5, 6)
    assert beside.result().token_ids == free.token_ids


def test_a_schema_that_is_too_long_is_refused_before_it_is_queued(
    make_engine: EngineMaker,
) -> None:
    driver = make_engine()
    with pytest.raises(RequestError, match="response_format"):
        driver.submit(random_tokens(20, seed=1), json_schema="x" * (LONGEST_SCHEMA + 1))
