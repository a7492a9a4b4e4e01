"""A short randomised run of everything at once; `benchmarks/engine_soak.py` is the long one."""

from __future__ import annotations

from pathlib import Path

from benchmarks.engine_soak import Soak, make_engine, tiny_model


def test_mixed_requests_stay_within_their_caps_and_leak_nothing(tmp_path: Path) -> None:
    engine = make_engine(tiny_model(), tmp_path)
    soak = Soak(engine, seed=3)
    soak.run(250)
    assert soak.leaked_pages() == 0
    assert soak.cap_violations == 0
    assert soak.errors == 0
    assert engine.pipeline.ledger.totals().open_requests == 0
    assert soak.outcomes["materialised"] > 20
    assert engine.stats().shadow_samples > 0
    assert all(tier.used_bytes for tier in engine._tiers.stats()), "every tier was used"
    assert engine.stats().donors == engine.pipeline.stats().donors
    engine.drop_donors()
    assert engine.stats().tier_bytes == {"device": 0, "host": 0, "disk": 0}
    engine.close()
