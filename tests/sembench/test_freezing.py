"""Frozen manifests: what differs is noticed and named."""

import json
from dataclasses import replace

import pytest

from sembench.errors import ChecksumError
from sembench.manifests.building import BuildReport, build_items, source_for
from sembench.manifests.files import write_manifest
from sembench.manifests.freezing import (
    check_against_frozen,
    checksums_name,
    freeze_manifest,
    manifest_name,
    verify_manifest,
)
from sembench.manifests.spec import SPECS, BuildSpec

SPEC = BuildSpec(
    name="small",
    profile="synthetic-v1",
    datasets=("synthetic_harbour",),
    max_items_per_dataset=1,
    transforms=("exact_repeat", "rag_reorder"),
)


@pytest.fixture
def frozen(tmp_path):
    freeze_manifest(SPEC, tmp_path, block_size=16)
    return tmp_path


def problems(folder, spec=SPEC, block_size=None):
    return verify_manifest(spec, folder, block_size=block_size)


def edit_checksums(folder, **changes):
    path = folder / checksums_name(SPEC)
    path.write_text(json.dumps(json.loads(path.read_text()) | changes), encoding="utf-8")


def test_a_frozen_manifest_verifies(frozen):
    assert problems(frozen) == []
    checksums = json.loads((frozen / checksums_name(SPEC)).read_text())
    assert checksums["workload_items"] == 2
    assert checksums["manifest"] == "small.jsonl"
    assert checksums["spec"] == SPEC.to_dict()


@pytest.mark.parametrize("position", [0, 1000, -2])
def test_one_changed_byte_is_noticed(frozen, position):
    path = frozen / manifest_name(SPEC)
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(bytes(data))
    assert any(".sha256: frozen" in problem for problem in problems(frozen))


def test_a_lost_line_is_noticed(frozen):
    path = frozen / manifest_name(SPEC)
    path.write_text(path.read_text().splitlines(keepends=True)[0])
    found = " ".join(problems(frozen))
    assert "workload_items: frozen 2, found 1" in found
    assert ".sha256" in found
    assert "exact.total_blocks" in found


def test_changed_figures_and_specs_are_noticed(frozen):
    exact = json.loads((frozen / checksums_name(SPEC)).read_text())["exact"]
    edit_checksums(frozen, exact=exact | {"exact_blocks": 3})
    assert any("exact.exact_blocks: frozen 3" in problem for problem in problems(frozen))
    assert problems(frozen, block_size=32) == [], "figures of another block size are not comparable"
    changed = replace(SPEC, max_segments=3)
    assert any(".spec" in problem for problem in problems(frozen, spec=changed))


def test_a_missing_manifest_or_checksum_is_named(frozen, tmp_path):
    (frozen / manifest_name(SPEC)).unlink()
    assert problems(frozen) == [f"{frozen / 'small.jsonl'} does not exist"]
    (frozen / checksums_name(SPEC)).write_text("[]")
    with pytest.raises(ChecksumError, match="expected an object"):
        problems(frozen)
    (frozen / checksums_name(SPEC)).unlink()
    with pytest.raises(ChecksumError, match="freeze the spec first"):
        problems(frozen)


def test_what_is_frozen_stays_unless_replaced(frozen):
    path = frozen / manifest_name(SPEC)
    path.write_text(path.read_text().splitlines(keepends=True)[0])
    with pytest.raises(ChecksumError, match="already frozen"):
        freeze_manifest(SPEC, frozen, block_size=16)
    freeze_manifest(SPEC, frozen, block_size=16, replace=True)
    assert problems(frozen) == []


def test_a_rebuild_matches_what_was_frozen(frozen):
    rebuilt = frozen / "again.jsonl"
    write_manifest(rebuilt, build_items(SPEC, source_for(SPEC), BuildReport()))
    assert check_against_frozen(SPEC, rebuilt).startswith("matches")
    write_manifest(rebuilt, build_items(replace(SPEC, seed=1), source_for(SPEC), BuildReport()))
    with pytest.raises(ChecksumError, match="is not the frozen"):
        check_against_frozen(SPEC, rebuilt)
    (frozen / checksums_name(SPEC)).unlink()
    assert check_against_frozen(SPEC, rebuilt).startswith("no CHECKSUMS")


def test_the_shipped_fixture_is_still_what_a_build_gives(tmp_path):
    spec = SPECS["fixture"]
    path = tmp_path / manifest_name(spec)
    write_manifest(path, build_items(spec, source_for(spec), BuildReport()))
    assert check_against_frozen(spec, path).startswith("matches sembench's")
    assert verify_manifest(spec, tmp_path, block_size=16) == []
