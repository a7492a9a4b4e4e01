"""Promise: the soak and the timing attack can fail."""

from __future__ import annotations

import numpy as np
from benchmarks.soak import Books, growth, report_of
from benchmarks.soak_traffic import Kind, Manner, Traffic
from benchmarks.timing_attack import Measured
from benchmarks.timing_attack import report_of as attack_report


def failed(books: Books, memory: list[float], log: list[str]) -> set[str]:
    report = report_of(books, memory, case="c", command="", log=log)
    return {row.metric for row in report.failed}


def test_a_clean_soak_passes_and_each_trouble_fails_it() -> None:
    flat, growing = [100.0] * 50, [100.0 + second for second in range(50)]
    assert failed(Books(), flat, []) == set()
    assert failed(Books(), growing, []) == {"memory growth after warm-up"}
    assert failed(Books(), flat, ['{"level": "error"}']) == {"errors in the log"}
    troubled = Books(wrong=["x"], unexpected=["y"])
    troubled.statuses["500"] += 1
    troubled.statuses["503"] += 1
    assert failed(troubled, flat, []) == {
        "wrong answers",
        "unexpected replies",
        "5xx other than 503",
    }
    assert growth(growing) > 0.05


def test_traffic_is_of_every_kind_and_manner_and_tenants_documents_are_their_own() -> None:
    traffic = Traffic(tenants=3, seed=1)
    calls = [traffic.next() for _ in range(600)]
    assert {call.prompt.kind for call in calls} == set(Kind)
    assert {call.manner for call in calls} == set(Manner)
    asked = [
        {call.prompt.messages[-1]["content"] for call in calls if call.tenant == tenant}
        for tenant in range(3)
    ]
    assert all(len(prompts) > 50 for prompts in asked)
    edited = [call.prompt for call in calls if call.prompt.kind is Kind.EDITED]
    assert all(prompt.fact.statement in prompt.messages[-1]["content"] for prompt in edited)
    assert all(not prompt.states_fact("no such value") for prompt in edited)


def test_a_leak_is_told_from_none() -> None:
    numbers = np.random.default_rng(3)
    noise = numbers.normal(5.0, 1.0, (4000, 2))
    leak = noise - np.array([0.25, 0.0])

    def misses(times: np.ndarray, *, isolated: bool) -> int:
        measured = Measured(tier="host", isolated=isolated, times=times)
        return len(attack_report([measured], "").failed)

    assert misses(noise, isolated=True) == 0
    assert misses(leak, isolated=True) == 2
    assert misses(noise, isolated=False) == 1
    assert misses(noise - np.array([2.0, 0.0]), isolated=False) == 0
