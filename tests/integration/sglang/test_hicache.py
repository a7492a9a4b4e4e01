"""Promise: HiCache and our spans live beside one another, and nothing approximate reaches its host.

SGLang's own tree, controller and host pool; its copying kernels need a GPU, so plain copies stand
in for them (`changes.hicache_on_cpu`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from semblend.core.tokens import TokenArray
from semblend.integration.sglang import hicache
from semblend.integration.sglang.hicache import PATIENCE, HostTier, hicache_refusals
from tests.integration.models import joined, plain_model, random_tokens
from tests.integration.sglang import changes, probes
from tests.integration.sglang.engines import DEVICE, Engine
from tests.integration.sglang.prompts import DOCUMENT, DONOR, TARGET, mixed_requests

HICACHE = {
    "enable_hierarchical_cache": True,
    "hicache_ratio": 4.0,
    "hicache_write_policy": os.environ.get("TEST_SGLANG_HICACHE_WRITES", "write_through"),
    "hicache_mem_layout": "layer_first",
    **(
        {"before": "hicache_on_cpu"}
        if DEVICE == "cpu"
        else {"hicache_io_backend": os.environ.get("TEST_SGLANG_HICACHE_IO", "kernel")}
    ),
}
SMALL = {**HICACHE, "max_total_tokens": 2048, "max_running_requests": 4}


def exact_kv(tokens: list[int]) -> torch.Tensor:
    """What a plain model computes, [layers, 2, tokens, kv_heads, head_dim]."""
    with torch.no_grad():
        cache = plain_model("llama")(torch.tensor([tokens]), use_cache=True).past_key_values
    layers = [(layer.keys[0], layer.values[0]) for layer in cache.layers]
    return torch.stack([torch.stack(pair).transpose(1, 2) for pair in layers])


COMPUTED = {"reuse": False, "donate": False}


def assert_host_holds_exact_kv_alone(engine: Engine, prompts: Iterable[TokenArray]) -> int:
    """Prompts are served again from what HiCache has, and their K/V is what a model computes."""
    cached = 0
    for prompt in prompts:
        answer = engine.run(prompt, max_tokens=1, hints=COMPUTED)
        assert answer.semblend["reused_tokens"] == 0
        cached += answer.cached_tokens
        found = engine.kv(answer, 0, len(prompt))
        torch.testing.assert_close(found, exact_kv(prompt.tolist()), rtol=1e-3, atol=1e-3)
    return cached


def evict(engine: Engine, seed: int) -> None:
    """Push everything else off the device."""
    for number in range(4):
        engine.run(random_tokens(900, seed=seed + number), max_tokens=1, hints={"donate": False})


def test_spans_are_loaded_beside_hicache_and_never_reach_its_host(make_engine):
    plain = make_engine("llama", server={"max_total_tokens": 2048, "max_running_requests": 4})
    plain.donate(DONOR)
    expected = plain.run(TARGET)
    assert expected.semblend["outcome"] == "materialised"

    engine = make_engine("llama", server=SMALL)
    assert engine.call(changes.tree_of) == "SemBlendRadixCache"
    engine.donate(DONOR)
    answer = engine.run(TARGET)
    assert answer.semblend["outcome"] == "materialised"
    assert answer.semblend["reused_tokens"] == expected.semblend["reused_tokens"]
    assert answer.tokens == expected.tokens
    assert answer.cached_tokens == expected.cached_tokens
    evict(engine, seed=10)
    assert assert_host_holds_exact_kv_alone(engine, [TARGET]) < 100, "nobody has kept the span"
    assert assert_host_holds_exact_kv_alone(engine, [DONOR]) > 400, "HiCache has kept the donor"
    engine.assert_no_leak()


def test_hicache_brings_back_exact_prefixes_and_answers_as_cold(make_engine):
    engine = make_engine("llama", server=SMALL)
    prompt = joined(random_tokens(300, seed=21), random_tokens(60, seed=22))
    cold = engine.cold(prompt)
    engine.donate(prompt)
    evict(engine, seed=30)
    again = engine.run(prompt)
    assert again.tokens == cold.tokens
    assert again.cached_tokens >= 300, "from the host"
    assert again.semblend["outcome"] == "exact_prefix"
    assert again.semblend["exact_tokens"] == again.cached_tokens
    assert again.semblend["reused_tokens"] == 0
    engine.assert_no_leak()


def test_a_donor_that_left_the_device_is_forgotten_and_found_again_once_it_is_back(make_engine):
    engine = make_engine("llama", server=SMALL)
    engine.flush()
    engine.donate(DONOR)
    evict(engine, seed=40)
    target = joined(random_tokens(77, seed=141), DOCUMENT, random_tokens(9, seed=142))
    cold = engine.cold(target)
    assert engine.run(target, hints={"donate": False}).tokens == cold.tokens
    engine.donate(DONOR)
    other = joined(random_tokens(91, seed=143), DOCUMENT, random_tokens(9, seed=144))
    answer = engine.run(other)
    assert answer.semblend["outcome"] == "materialised", answer.semblend
    assert_host_holds_exact_kv_alone(engine, [other, DONOR, target])
    engine.assert_no_leak()


def test_a_mixed_load_leaves_the_host_exact(make_engine):
    """Everything at once, in a cache too small for it: evictions, host hits and spans."""
    engine = make_engine("llama", server=SMALL)
    donors, requests = mixed_requests(24)
    for donor in donors:
        engine.donate(donor)
    first = engine.run_all(requests)
    engine.run_all([*donors, *requests])
    assert sum(answer.semblend["outcome"] == "materialised" for answer in first) > 3
    assert assert_host_holds_exact_kv_alone(engine, [*requests, *donors]) > 300
    engine.assert_no_leak()


def in_flight(host: Any, node: Any) -> None:
    host.cache.ongoing_load_back["test"] = node


def landed(host: Any) -> None:
    host.cache.ongoing_load_back.pop("test")


def test_nothing_is_copied_while_hicache_loads(make_engine):
    """What it brings back may not be in its slots yet: the request waits, then it is computed."""
    engine = make_engine("llama", server=SMALL)
    engine.flush()
    engine.donate(DONOR)
    cold = engine.cold(TARGET)
    engine.call(in_flight, "something")
    try:
        answer = engine.run(TARGET, hints={"donate": False})
    finally:
        engine.call(landed)
    assert answer.semblend["reused_tokens"] == 0
    assert answer.semblend["reason"] == "no_capacity"
    assert answer.tokens == cold.tokens
    assert engine.call(probes.counts)["waits"] >= PATIENCE
    engine.assert_no_leak()


def test_what_was_not_proven_of_hicache_is_refused_by_name(monkeypatch):
    def named(**arguments: Any) -> str:
        return "; ".join(map(str, hicache_refusals(SimpleNamespace(**arguments))))

    monkeypatch.setattr(hicache, "_problems", list)
    assert named(enable_hierarchical_cache=False, hicache_storage_backend="file") == ""
    assert named(enable_hierarchical_cache=True) == ""
    assert "storage backend" in named(
        enable_hierarchical_cache=True, hicache_storage_backend="file"
    )
    assert "buffer_only" in named(
        enable_hierarchical_cache=True, hicache_host_memory_mode="buffer_only"
    )
    monkeypatch.setattr(hicache, "_problems", lambda: ["nobody knows who owns a load"])
    assert "who owns a load" in named(enable_hierarchical_cache=True)


def test_the_installed_hicache_is_as_known():
    assert hicache._problems() == []


def test_without_hicache_nothing_ever_waits_for_it():
    assert not HostTier(SimpleNamespace(cache_controller=None)).is_loading


@pytest.fixture(scope="module", autouse=True)
def _cpu_sglang():
    from tests.integration.sglang.engines import SHIMS

    if DEVICE != "cpu":
        yield
        return
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("SGLANG_USE_CPU_ENGINE", "1")
        patched.syspath_prepend(str(SHIMS))
        yield
