"""Manifest files: whole or absent, compressed as named, wrong lines named."""

import pytest

from sembench.errors import ManifestError
from sembench.manifests.building import BuildReport, build_items
from sembench.manifests.files import count_items, read_manifest, write_manifest
from sembench.manifests.spec import BuildSpec
from tests.sembench.records import ListSource, record

SPEC = BuildSpec(name="t", profile="list", transforms=("exact_repeat", "rag_reorder"))


def items():
    return list(build_items(SPEC, ListSource([record(0), record(1)]), BuildReport()))


@pytest.mark.parametrize("name", ["m.jsonl", "m.jsonl.xz", "m.jsonl.gz"])
def test_what_is_written_is_read_back(tmp_path, name):
    path = tmp_path / "deep" / name
    written = items()
    assert write_manifest(path, written) == len(written) == count_items(path)
    assert list(read_manifest(path)) == written
    assert list(read_manifest(path, max_items=1)) == written[:1]
    assert count_items(path, max_items=1) == 1


def test_a_failed_write_leaves_no_manifest(tmp_path):
    def failing():
        yield items()[0]
        raise RuntimeError("source went away")

    with pytest.raises(RuntimeError):
        write_manifest(tmp_path / "m.jsonl", failing())
    assert not (tmp_path / "m.jsonl").exists()


def test_errors_name_file_and_line(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text(items()[0].to_line() + "{broken\n", encoding="utf-8")
    with pytest.raises(ManifestError, match=r"m\.jsonl:2: not JSON"):
        list(read_manifest(path))
    with pytest.raises(ManifestError, match=r"none\.jsonl: cannot be read"):
        list(read_manifest(tmp_path / "none.jsonl"))
    with pytest.raises(ManifestError, match=r"none\.jsonl: cannot be read"):
        count_items(tmp_path / "none.jsonl")


def test_a_truncated_archive_is_an_error_not_a_short_manifest(tmp_path):
    path = tmp_path / "m.jsonl.xz"
    write_manifest(path, items())
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ManifestError, match="cannot be read"):
        list(read_manifest(path))


def test_an_item_that_occurs_twice_is_refused(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text(items()[0].to_line() * 2, encoding="utf-8")
    with pytest.raises(ManifestError, match=r"m\.jsonl:2\.item_id"):
        list(read_manifest(path))
