"""A killed writer loses nothing that was written and leaves nothing half written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from benchmarks.crash_recovery import Harness

from semblend.kv.segments import Segment, kv_bytes, kv_checksum
from semblend.kv.tiers import segment_file
from semblend.kv.tiers.segment_file import Header


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)  # children are forked


def test_thirty_kills_lose_nothing_and_show_nothing_half(tmp_path: Path) -> None:
    harness = Harness(tmp_path / "tier", seed=11)
    harness.run(32)
    assert harness.wrong == []
    assert harness.counts["kills"] == 32
    assert harness.counts["segments written"] > 10
    assert harness.counts["segments read back"] > 20


def careless(directory: Path, segment: Segment) -> None:
    """Writes under the final name, header last: half a file is visible in between."""
    import os

    header = Header(
        key=segment.key,
        shape=tuple(segment.kv.shape),
        dtype=segment.kv.dtype,
        checksum=kv_checksum(segment.kv),
    ).encode()
    path = directory / segment_file.file_name(segment.key)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    os.pwrite(descriptor, b"\0", len(header) + segment.nbytes - 1)
    os.write(descriptor, header)
    os.write(descriptor, kv_bytes(segment.kv))
    os.close(descriptor)


def forgetful(directory: Path, segment: Segment) -> None:
    """Says it wrote, and did not."""


@pytest.mark.parametrize("writer", [careless, forgetful])
def test_a_writer_that_cuts_corners_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writer: object
) -> None:
    """The negative control: the harness sees half files and lost ones."""
    monkeypatch.setattr(segment_file, "write_segment", writer)
    harness = Harness(tmp_path / "tier", seed=11)
    harness.run(24)
    assert harness.wrong
