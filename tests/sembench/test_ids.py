"""Ids are the public ones, for ever."""

import hashlib

from sembench.ids import donor_id, file_sha256, item_id, segment_donor_id, stable_id


def test_ids_follow_the_public_formula():
    joined = b"qasper\x1f17\x1frag_reorder"
    assert item_id("qasper", "17", "rag_reorder") == hashlib.sha256(joined).hexdigest()[:16]
    item = item_id("qasper", "17", "rag_reorder")
    assert donor_id(item) == stable_id(item, "donor")
    assert segment_donor_id(item, 2) == stable_id(item, "segment", "2")


def test_parts_do_not_run_together():
    assert stable_id("ab", "c") != stable_id("a", "bc")


def test_a_file_is_hashed_whole(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"x" * 3_000_000)
    assert file_sha256(path) == hashlib.sha256(b"x" * 3_000_000).hexdigest()
