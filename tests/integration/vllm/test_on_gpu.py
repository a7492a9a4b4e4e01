"""The connector under both runners and both schedulers on a GPU; skipped loudly without one."""

from __future__ import annotations

import pytest
import torch
from benchmarks.vllm_runners import Runner, Scheduling

from tests.integration.vllm.on_gpu import CHECKS, CONFIGURATIONS, QUANTISED, Kind, run_apart

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="NO GPU: nothing was proven here"),
]


@pytest.mark.parametrize(("runner", "scheduling"), CONFIGURATIONS, ids=str)
def test_what_holds_on_a_cpu_holds_on_a_gpu(runner, scheduling):
    """One process a configuration: contract, holes, float64, hashes, batches, faults, donors."""
    found = run_apart(runner, scheduling)
    assert set(found) == {check.__name__ for check in CHECKS[Kind.PLAIN]}
    assert not any(found.values()), found


@pytest.mark.parametrize("kind", [Kind.LORA, Kind.SLEEP, Kind.FP8_KV, *QUANTISED])
def test_adapters_sleep_and_quantised_weights_under_vllms_own_defaults(kind):
    found = run_apart(Runner.V2, Scheduling.ASYNC, kind)
    assert set(found) == {check.__name__ for check in CHECKS[kind]}
    assert not any(found.values()), found
