"""Whatever is damaged is noticed and is a miss: a seeded part of `benchmarks.corruption`."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks import corruption
from benchmarks.corruption_targets import CertificateFile, ReadResult, make_targets


@pytest.fixture(autouse=True)
def _log_level() -> Iterator[None]:
    logger = logging.getLogger("semblend")
    level = logger.level
    yield
    logger.setLevel(level)


def test_no_corruption_is_believed(tmp_path: Path) -> None:
    seen, wrong = corruption.run(700, seed=3, folder=tmp_path)
    assert wrong == []
    assert sum(seen.values()) == 700
    believed = {name for name, result in seen if result is ReadResult.SAME}
    assert believed <= {"compressed manifest"}, "where the format has bytes that say nothing"


def test_every_target_reads_what_is_not_damaged(tmp_path: Path) -> None:
    """The negative control: a target that called everything corrupt would prove nothing."""
    for target in make_targets(tmp_path, seed=0):
        try:
            assert target.read(target.fresh()) is not ReadResult.DETECTED, target.name
        finally:
            target.close()


def test_damage_is_never_none() -> None:
    roll = random.Random(0)
    for data in (b"\0", b"\0" * 50, bytes(range(256))):
        for _ in range(200):
            assert corruption.damage(data, roll, resizable=True)[1] != data
            kind, bad = corruption.damage(data, roll, resizable=False)
            assert len(bad) == len(data), kind


def test_a_certificate_is_read_in_one_way_only(tmp_path: Path) -> None:
    """The same contents in other bytes are other bytes: somebody has been at it."""
    target = CertificateFile(tmp_path)
    good = target.fresh()
    assert target.read(good) is ReadResult.SAME
    policy = b'"policy": "span_head(8)",'
    for bad in (
        good.rstrip(),
        good.replace(b"1e-05", b"1E-05"),
        good.replace(b"  ", b" "),
        good.replace(policy, b'"policy": "none", ' + policy),
    ):
        assert bad != good
        assert target.read(bad) is ReadResult.DETECTED
