"""Holes of one request share a pass exactly where the backend writes K/V before it reads."""

from __future__ import annotations

import pytest
import torch

from semblend.core.plan import Hole
from semblend.integration.worker.pass_proof import holes_share_a_pass
from tests.integration.models import joined, random_tokens
from tests.integration.sglang import probes
from tests.integration.sglang.prompts import DONOR, TARGET

WIDTH, TOKENS = 16, 96


class ToyTrial:
    """A model of nothing but attention; its backend writes first or attends first."""

    def __init__(self, *, layers: int, writes_first: bool, noise: float = 0.0) -> None:
        numbers = torch.Generator().manual_seed(3)
        shape = (layers, 3, WIDTH, WIDTH)
        self.weights = torch.randn(shape, generator=numbers, dtype=torch.float64) / WIDTH**0.5
        self.inputs = torch.randn(TOKENS, WIDTH, generator=numbers, dtype=torch.float64)
        self.pool = torch.zeros(layers, 2, TOKENS, WIDTH, dtype=torch.float64)
        self.writes_first = writes_first
        self.noise = noise
        self.numbers = numbers

    def compute(self, *holes: Hole) -> None:
        states = [self.inputs[hole.start : hole.end] for hole in holes]
        for layer, (to_q, to_k, to_v) in enumerate(self.weights):
            rows = [torch.stack((state @ to_k, state @ to_v)) for state in states]
            rows = [row * (1 + self.noise * self._random(row.shape)) for row in rows]
            seen = self.pool[layer].clone()
            if self.writes_first:
                self._write(seen, holes, rows)
            after = []
            for hole, state, row in zip(holes, states, rows, strict=True):
                mine = seen.clone()
                mine[:, hole.start : hole.end] = row
                after.append(state + self._attended(state @ to_q, mine, hole))
            self._write(self.pool[layer], holes, rows)
            states = after

    def spoil(self, *holes: Hole) -> None:
        for hole in holes:
            self.pool[:, :, hole.start : hole.end] = 4.0

    def kv(self, *holes: Hole) -> torch.Tensor:
        return torch.cat([self.pool[:, :, hole.start : hole.end] for hole in holes], dim=2)

    def _attended(self, query: torch.Tensor, kv: torch.Tensor, hole: Hole) -> torch.Tensor:
        scores = query @ kv[0, : hole.end].T / WIDTH**0.5
        later = torch.arange(hole.end) > torch.arange(hole.start, hole.end)[:, None]
        return scores.masked_fill(later, -torch.inf).softmax(-1) @ kv[1, : hole.end]

    def _write(self, pool: torch.Tensor, holes: tuple[Hole, ...], rows: list[torch.Tensor]) -> None:
        for hole, row in zip(holes, rows, strict=True):
            pool[:, hole.start : hole.end] = row

    def _random(self, shape: torch.Size) -> torch.Tensor:
        return torch.randn(shape, generator=self.numbers, dtype=torch.float64)


@pytest.mark.parametrize("noise", [0.0, 2**-9], ids=["exact", "as half precision rounds"])
@pytest.mark.parametrize("layers", [2, 12])
@pytest.mark.parametrize("writes_first", [True, False])
def test_what_a_backend_does_first_is_seen(writes_first, layers, noise):
    trial = ToyTrial(layers=layers, writes_first=writes_first, noise=noise)
    assert holes_share_a_pass(trial) is writes_first


@pytest.mark.parametrize("writes_first", [True, False])
def test_one_layer_of_k_v_depends_on_no_attention(writes_first):
    assert holes_share_a_pass(ToyTrial(layers=1, writes_first=writes_first))


def test_a_pass_that_computes_nothing_proves_nothing():
    trial = ToyTrial(layers=2, writes_first=True)
    whole = trial.compute
    trial.compute = lambda *holes: whole(*holes) if len(holes) == 1 else None
    assert not holes_share_a_pass(trial)


def test_the_engine_is_asked_and_nothing_is_left_behind(make_engine):
    engine = make_engine("llama")
    engine.flush()
    assert engine.call(probes.shares_passes), "torch_native writes first"
    assert engine.call(probes.proof), "and the proof can be made again"
    engine.assert_no_leak()


def test_a_real_backend_that_attends_first_is_given_one_hole_a_pass(make_engine):
    engine = make_engine("llama")
    engine.flush()
    engine.donate(DONOR)
    middle = random_tokens(9, seed=71)
    target = joined(TARGET[:110], DONOR[50:250], middle, DONOR[250:470], TARGET[-20:])
    expected = engine.run(target, hints={"donate": False})
    engine.call(probes.attend_first)
    try:
        assert not engine.call(probes.proof)
        wrong = engine.run(target, hints={"donate": False})
        engine.call(probes.one_hole_a_pass, True)
        right = engine.run(target, hints={"donate": False})
    finally:
        engine.call(probes.one_hole_a_pass, False)
        engine.call(probes.mend)
    assert right.logprobs == pytest.approx(expected.logprobs, abs=1e-4)
    assert wrong.logprobs != pytest.approx(expected.logprobs, abs=1e-4), "or nothing was at stake"
