"""Text as callers see it, on the bundled model: streamed, stopped and ended."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from semblend.engine import EmbeddedEngine, EngineOptions
from semblend.engine.api import FinishReason
from tests.engine.conftest import REUSING, Driver
from tests.engine.models import reference


@pytest.fixture(scope="module")
def driver() -> Iterator[Driver]:
    model, _ = reference()
    with EmbeddedEngine(
        model, options=EngineOptions(pool_bytes=64 << 20), settings=REUSING
    ) as engine:
        yield Driver(engine)


def prompt(driver: Driver, question: str) -> np.ndarray:
    text = driver.engine.tokenizer.apply_chat_template(
        [{"role": "user", "content": f"The code of the harbour is 4711.\n\nQuestion: {question}"}],
        add_generation_prompt=True,
        tokenize=False,
    )
    ids = driver.engine.tokenizer(text, add_special_tokens=False)["input_ids"]
    return np.asarray(ids, dtype=np.int32)


def test_the_bundled_model_finds_a_fact_and_stops_by_itself(driver: Driver) -> None:
    result = driver.run(
        prompt(driver, "What is the code of the harbour?"), max_tokens=20, ignore_eos=False
    )
    assert result.text.strip() == "4711"
    assert result.reason is FinishReason.STOP
    assert result.token_ids[-1] in driver.engine.model.eos_token_ids


def test_streamed_text_is_the_decoded_output(driver: Driver) -> None:
    result = driver.run(prompt(driver, "Say something."), max_tokens=25)
    assert result.text == driver.engine.tokenizer.decode(result.token_ids, skip_special_tokens=True)
    assert result.text == "".join(event.text for event in result.events)


def test_a_stop_string_ends_generation_and_is_not_shown(driver: Driver) -> None:
    free = driver.run(prompt(driver, "Say something."), max_tokens=25).text
    stop = free[6:9]
    result = driver.run(prompt(driver, "Say something."), max_tokens=25, stop=(stop,))
    assert result.reason is FinishReason.STOP
    assert result.text == free[: free.index(stop)]


def test_a_stop_token_ends_generation_and_its_text_is_not_shown(driver: Driver) -> None:
    free = driver.run(prompt(driver, "Say something."), max_tokens=6)
    stop = free.token_ids[3]
    end = free.token_ids.index(stop)
    result = driver.run(prompt(driver, "Say something."), max_tokens=6, stop_token_ids=(stop,))
    assert result.reason is FinishReason.STOP
    assert result.token_ids == free.token_ids[: end + 1]
    assert result.text == driver.engine.tokenizer.decode(
        free.token_ids[:end], skip_special_tokens=True
    )
