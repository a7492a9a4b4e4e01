"""A pass queued while its spans are still on their way, and one replayed at a recorded size."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from semblend.integration.vllm.piecewise_graphs import PiecewiseGraphs
from semblend.integration.worker.span_loader import SpanLoad
from tests.integration.models import joined, random_tokens

PASSAGE = random_tokens(300, seed=301)
DONOR = joined(random_tokens(40, seed=302), PASSAGE, random_tokens(9, seed=303))
TARGET = joined(random_tokens(90, seed=304), PASSAGE, random_tokens(31, seed=305))
HINTS = {"capture": False, "policy": "seams(5)"}
LOOKING = {"capture": False, "policy": "query_attention(0.2, 8)"}


class Late:
    """Copies that arrive no earlier than a layer waits for them."""

    def __init__(self, load):
        self._load = load
        self.waited: list[int] = []

    def wait(self, layer):
        self.waited.append(layer)
        self._load(layer)


@pytest.fixture
def engine(make_engine):
    engine = make_engine("llama", mode="segmented_experimental")
    engine.forget_donors()
    engine.forget_prefixes()
    engine.donate(DONOR)
    return engine


def written(engine, hints=HINTS):
    """A hit's answer and K/V."""
    engine.forget_prefixes()
    answer = engine.run(TARGET, hints=hints)
    return answer, engine.kv(answer, 0, len(TARGET))


@pytest.mark.parametrize("hints", [HINTS, LOOKING], ids=["holes", "probe"])
def test_every_layer_of_a_pass_waits_for_its_own_spans(engine, monkeypatch, hints):
    expected, kv = written(engine, hints)
    late: list[Late] = []

    def place_all(self):
        late.append(Late(self._load))
        return late[-1]

    monkeypatch.setattr(SpanLoad, "place_all", place_all)
    answer, got = written(engine, hints)
    assert answer.semblend["outcome"] == "materialised"
    layers = engine.worker.access.layer_count
    assert late[0].waited[:layers] == list(range(layers)), "each layer, before its attention"
    torch.testing.assert_close(got, kv, atol=0, rtol=0)
    assert answer.tokens == expected.tokens


def test_a_layer_that_did_not_wait_means_a_cold_answer(engine, monkeypatch):
    cold = engine.cold(TARGET)
    monkeypatch.setattr(SpanLoad, "place_all", lambda self: Late(self._load))
    bypassed = SimpleNamespace(impl=SimpleNamespace(forward=None))
    nested = engine.worker.nested
    monkeypatch.setattr(nested, "_layers", [*nested._layers, bypassed])
    answer, _ = written(engine)
    assert answer.semblend["reused_tokens"] == 0
    assert "did not wait" in answer.semblend["detail"]
    assert answer.tokens == cold.tokens


@pytest.mark.parametrize("hints", [HINTS, LOOKING], ids=["holes", "probe"])
def test_a_padded_pass_writes_and_shows_what_an_unpadded_one_does(engine, monkeypatch, hints):
    """What a replay at a recorded size needs; the replay itself needs a GPU."""
    expected, kv = written(engine, hints)
    buffers = SimpleNamespace(
        input_ids=torch.full((512,), 7, dtype=torch.int32),
        positions=torch.full((512,), 3, dtype=torch.int64),
    )
    sizes: list[int] = []

    class Padded(PiecewiseGraphs):
        def context(self, size):
            sizes.append(size)
            return {}

    monkeypatch.setattr(engine.worker.nested, "_graphs", Padded([256, 512], buffers))
    answer, got = written(engine, hints)
    assert set(sizes) == {256}, "every pass was padded"
    assert answer.semblend["outcome"] == "materialised"
    torch.testing.assert_close(got, kv, atol=1e-5, rtol=0)
    assert answer.tokens == expected.tokens
    assert buffers.input_ids[255] == 0
    assert buffers.input_ids[256] == 7, "what lies behind is not touched"


def test_a_pass_larger_than_every_recorded_size_is_not_replayed():
    graphs = PiecewiseGraphs([1, 2, 4, 8], None)
    assert [graphs.size_for(tokens) for tokens in (1, 3, 8, 9)] == [1, 4, 8, None]


def test_an_engine_without_recorded_graphs_has_none(engine):
    nested = engine.worker.nested
    assert nested._graphs is None
    assert PiecewiseGraphs.of(nested._runner, nested._config) is None
