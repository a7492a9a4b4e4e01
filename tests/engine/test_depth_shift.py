"""Policies that shift depths: copies at their new depth, by the certificate's table or none."""

from __future__ import annotations

import numpy as np
import torch

from semblend.core.outcomes import DeclineReason
from semblend.core.plan import Span
from semblend.core.settings import EmbedderKind, Settings
from semblend.engine.materialise import load_spans
from semblend.engine.model import LoadedModel
from semblend.kv.depth_drift import DepthDrift, table_digest
from semblend.planning.certificates import depth_table
from tests.certificates import certificate_of, write
from tests.engine.conftest import same
from tests.engine.donors import DonorShelf, cold_kv, hand_plan, make_pool, make_table
from tests.engine.models import random_tokens, tiny

DOCUMENT = random_tokens(80, 31)
FAR = np.concatenate((random_tokens(380, 32), DOCUMENT, random_tokens(9, 33)))


def drift_of(model: LoadedModel) -> DepthDrift:
    shape = model.kv_shape
    generator = torch.Generator().manual_seed(5)
    means = torch.randn((shape.layers, 2, 3, shape.kv_heads, shape.head_dim), generator=generator)
    return DepthDrift(depths=torch.tensor([10.0, 100.0, 500.0]), means=means)


def loaded(model: LoadedModel, target_start: int, drift: DepthDrift | None) -> torch.Tensor:
    tokens = np.concatenate((FAR[: target_start - 20], DOCUMENT, FAR[-9:]))
    span = Span(
        donor_id="d", donor_start=4, target_start=target_start - 16, length=len(DOCUMENT) - 4
    )
    plan = hand_plan(tokens, [span])
    shelf = DonorShelf()
    shelf.add("d", DOCUMENT, cold_kv(model, DOCUMENT), 32)
    pool = make_pool(model)
    table = make_table(pool, len(tokens), 3)
    load_spans(plan, tokens, table=table, pool=pool, rotary=model.rotary, donors=shelf, drift=drift)
    return pool.read(table, span.target_start, span.target_end)


def test_copies_are_shifted_from_their_donors_depth_to_their_own() -> None:
    model, _ = tiny("llama-gqa")
    drift = drift_of(model).to(model.device)
    plain, shifted = (loaded(model, 396, table) for table in (None, drift))
    move = drift.move(source_start=4, target_start=380, tokens=76, rotary=model.rotary)
    for layer in range(model.kv_shape.layers):
        torch.testing.assert_close(shifted[layer, 0], move.keys(layer, plain[layer, 0]))
        torch.testing.assert_close(shifted[layer, 1], move.values(layer, plain[layer, 1]))
    assert (shifted - plain).abs().max() > 0.1


def test_what_hardly_moved_is_left_alone() -> None:
    model, _ = tiny("llama-gqa")
    plain, shifted = (
        loaded(model, 120, table) for table in (None, drift_of(model).to(model.device))
    )
    assert torch.equal(plain, shifted)


def settings_for(folder) -> Settings:
    return Settings(
        embedder=EmbedderKind.NONE, namespace_secret="s", certificate_dir=str(folder),
        min_reuse_ratio=0.05, shadow_rate=0.0,
    )  # fmt: skip


def served(make_engine, folder, drift: DepthDrift, *, policy: str, keep: bool = True):
    model, _ = tiny("llama-gqa")
    data = {"depth_table": table_digest(drift.to_bytes())}
    certificate = certificate_of(model.fingerprint, policy=policy, data=data)
    path = write(folder, certificate)
    if keep:
        depth_table(path).write_bytes(drift.to_bytes())
    driver = make_engine(settings=settings_for(folder))
    driver.run(np.concatenate((DOCUMENT, random_tokens(5, 34))))
    return driver.run(FAR)


def test_an_engine_shifts_under_its_certificates_table(make_engine, tmp_path) -> None:
    model, _ = tiny("llama-gqa")
    still = DepthDrift(depths=torch.tensor([1.0, 2.0]), means=drift_of(model).means[:, :, :2] * 0)
    answers = {}
    for name, policy, drift in (
        ("plain", "none", still),
        ("no drift", "depth_shift(none)", still),
        ("drift", "depth_shift(none)", drift_of(model)),
    ):
        folder = tmp_path / name
        folder.mkdir()
        answers[name] = served(make_engine, folder, drift, policy=policy)
        assert answers[name].report.policy == policy
        assert answers[name].report.reused_tokens >= 70
    assert same(answers["no drift"], answers["plain"], 1e-6)
    assert not same(answers["drift"], answers["plain"])


def test_without_its_table_there_is_no_certificate(make_engine, tmp_path) -> None:
    model, _ = tiny("llama-gqa")
    answer = served(make_engine, tmp_path, drift_of(model), policy="depth_shift(none)", keep=False)
    assert answer.report.reason is DeclineReason.NO_CERTIFICATE


def test_a_table_that_cannot_be_read_costs_only_the_policies_that_need_it(
    make_engine, tmp_path
) -> None:
    model, _ = tiny("llama-gqa")
    path = write(tmp_path, certificate_of(model.fingerprint, policy="none"))
    depth_table(path).write_bytes(b"not a table")
    settings = settings_for(tmp_path).model_copy(update={"allow_uncertified": True})
    driver = make_engine(settings=settings)
    driver.run(np.concatenate((DOCUMENT, random_tokens(5, 34))))
    cold = driver.cold(FAR)
    declined = driver.run(FAR, policy="depth_shift(none)", donate=False)
    assert declined.report.reason is DeclineReason.UNSUPPORTED
    assert same(declined, cold)
    driver.engine.flush_prefix_cache()
    assert driver.run(FAR, donate=False).report.reused_tokens >= 70
