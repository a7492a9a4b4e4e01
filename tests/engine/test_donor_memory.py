"""Memory for donors: touched while nobody waits, used again, within the tier's cap."""

from __future__ import annotations

import threading
import time

from semblend.core.outcomes import Outcome
from semblend.core.settings import EmbedderKind, Settings
from semblend.engine import EmbeddedEngine
from semblend.kv.tiers import MemoryTier
from tests.engine.conftest import EngineMaker, same
from tests.engine.models import random_tokens, tiny

TOKEN_BYTES = tiny("llama-gqa")[0].kv_shape.token_bytes


def host_of(engine: EmbeddedEngine) -> MemoryTier:
    return engine._tiers.memory[-1]


def prepare(engine: EmbeddedEngine) -> None:
    """What an engine without requests does sooner or later."""
    while engine.donors.prepare(longest=engine.max_prompt_tokens):
        pass


def test_an_idle_engine_touches_memory_for_the_prompts_that_may_wait_and_no_more(
    make_engine: EngineMaker,
) -> None:
    engine = make_engine(host_donor_bytes=1 << 30, capture_queue=3).engine
    prepare(engine)
    prompts = 3 * engine.max_prompt_tokens * TOKEN_BYTES
    assert 0.5 * prompts < host_of(engine).spare_bytes <= prompts
    small = make_engine(host_donor_bytes=TOKEN_BYTES * 1024).engine
    prepare(small)
    assert 0 < host_of(small).spare_bytes <= TOKEN_BYTES * 512


def test_memory_that_a_prompt_took_is_made_up_for_without_another_request(
    make_engine: EngineMaker,
) -> None:
    driver = make_engine(host_donor_bytes=1 << 30, capture_queue=3)
    host = host_of(driver.engine)
    prepare(driver.engine)
    before = host.spare_bytes
    driver.run(random_tokens(300, seed=1), max_tokens=1)
    deadline = time.monotonic() + 30.0
    while host.spare_bytes < before and time.monotonic() < deadline:
        time.sleep(0.005)
    assert host.spare_bytes == before
    assert host.used_bytes > 0


def test_memory_is_touched_only_between_requests(make_engine: EngineMaker) -> None:
    engine = make_engine(host_donor_bytes=0).engine
    asked: list[int] = []
    # The engine's own thread may ask at any time; what counts here is this one.
    engine.donors.prepare = lambda **_: bool(asked.append(threading.get_ident()))  # type: ignore[method-assign]
    assert not engine._use_time(True)
    assert threading.get_ident() not in asked
    assert not engine._use_time(False)
    assert threading.get_ident() in asked


def test_an_engine_with_semblend_off_prepares_nothing(make_engine: EngineMaker) -> None:
    off = Settings(enabled=False, embedder=EmbedderKind.NONE)
    engine = make_engine(settings=off, host_donor_bytes=1 << 30).engine
    prepare(engine)
    assert host_of(engine).spare_bytes == 0


def test_prompts_kept_in_memory_that_others_used_before_answer_as_cold(
    make_engine: EngineMaker,
) -> None:
    driver = make_engine(host_donor_bytes=TOKEN_BYTES * 600, prefix_cache=False)
    host = host_of(driver.engine)
    for seed in range(8):
        prompt = random_tokens(300 + 13 * seed, seed=seed)
        driver.run(prompt)
        assert host.used_bytes + host.spare_bytes <= host.capacity_bytes
        warm = driver.run(prompt, donate=False)
        assert warm.report.outcome is Outcome.MATERIALISED
        assert warm.report.reused_tokens > 250
        assert same(warm, driver.cold(prompt)), "reuse that does not move is exact"
    assert host.stats().evictions > 0
    assert host.stats().corrupt == 0
