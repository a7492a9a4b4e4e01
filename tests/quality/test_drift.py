"""Depth drift: measured on one set of texts, it brings other texts' borrowed K/V nearer to cold."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch

from semblend.core.errors import PlanError
from semblend.engine.model import load_model
from semblend.quality.curves import curves
from semblend.quality.drift import bring_drift, edges_up_to, measure_drift
from semblend.quality.items import to_item
from semblend.quality.lab import Lab
from semblend.quality.measure import measure
from semblend.quality.shards import MeasurementJob
from semblend.quality.suite import Cell
from semblend.quality.texts.workloads import WORKLOADS

MODEL = Path(__file__).parents[2] / "models" / "semblend-reference-27m"
LENGTH = 2048


@pytest.fixture(scope="module")
def lab():
    torch.set_num_threads(1)
    made = Lab(load_model(str(MODEL), device="cpu", dtype="float32"), capacity_tokens=20_000)
    made.use_drift(measure_drift(made, length=LENGTH, long=2, short=4))
    yield made
    assert made.pool.allocator.free == made.pool.allocator.total
    made.close()


def item(lab, name):
    return to_item(WORKLOADS[name](31, 0, LENGTH), lab.model.tokenizer)


def test_the_shift_takes_away_much_of_what_separates_moved_passages_from_cold(lab):
    plain, shifted = curves(lab, item(lab, "composed"), ["none", "depth_shift(none)"])
    # Layer 0 knows nothing of depth; from layer 2 on it is written into K and V.
    assert shifted.layers[0] < 1e-4
    for before, after in zip(plain.layers[2:], shifted.layers[2:], strict=True):
        assert after < before
    assert sum(shifted.layers[2:8]) < 0.75 * sum(plain.layers[2:8])


def test_the_answer_comes_nearer_to_colds_and_nothing_is_recomputed_for_it(lab):
    plain, shifted = measure(lab, item(lab, "composed"), ["none", "depth_shift(none)"])
    assert shifted.recomputed_tokens == shifted.declined_tokens == shifted.probe_tokens == 0
    assert shifted.kl < plain.kl / 10


def test_a_document_in_its_place_is_not_touched(lab):
    plain, shifted = measure(lab, item(lab, "instruction"), ["none", "depth_shift(none)"])
    assert shifted.kl == plain.kl


def test_without_a_table_such_a_policy_is_refused(lab):
    bare = Lab(lab.model, capacity_tokens=6_000)
    try:
        with pytest.raises(PlanError, match="depth-drift table"):
            measure(bare, item(lab, "composed"), ["depth_shift(none)"])
    finally:
        bare.close()


def test_depths_are_fine_near_the_start_and_reach_the_end():
    edges = edges_up_to(LENGTH)
    assert edges[:4] == [0, 16, 32, 48]
    assert edges[-2] < LENGTH <= edges[-1]
    assert all(b - a >= 16 for a, b in pairwise(edges))


def test_a_job_measures_its_table_once_and_only_if_a_policy_asks(lab, tmp_path):
    def job(spec):
        cells = (Cell(workload="instruction", items=1, specs=(spec,), lengths=(100,)),)
        return MeasurementJob(
            model=str(MODEL), device="cpu", dtype="float32", cells=cells, seed=1,
            folder=tmp_path, drift=tmp_path / "depth.safetensors",
        )  # fmt: skip

    other = Lab(lab.model, capacity_tokens=6_000)
    try:
        bring_drift(other, job("none"))
        assert other.drift is None
        assert not (tmp_path / "depth.safetensors").exists()
        bring_drift(other, job("depth_shift(none)"))
        written = (tmp_path / "depth.safetensors").read_bytes()
        bring_drift(other, job("depth_shift(none)"))
        assert (tmp_path / "depth.safetensors").read_bytes() == written
        assert other.drift is not None
    finally:
        other.close()
