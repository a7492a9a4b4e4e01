"""Donors take a share of the memory there is, and never more than is free."""

from __future__ import annotations

from pathlib import Path

import pytest

from semblend.core.errors import SettingsError
from semblend.integration.host_memory import HostMemory, donor_bytes

GIB = 1 << 30


def machine(folder: Path, *, total: int, free: int, **group: str) -> Path:
    (folder / "proc").mkdir()
    (folder / "proc/meminfo").write_text(
        f"MemTotal:       {total // 1024} kB\nMemFree: 1 kB\nMemAvailable: {free // 1024} kB\n"
    )
    (folder / "sys/fs/cgroup").mkdir(parents=True)
    for name, text in group.items():
        (folder / "sys/fs/cgroup" / name.replace("_", ".", 1)).write_text(text)
    return folder


def test_a_quarter_of_the_machine_and_at_most_half_of_what_is_free(tmp_path):
    memory = HostMemory.read(machine(tmp_path, total=64 * GIB, free=60 * GIB))
    assert memory == HostMemory(total_bytes=64 * GIB, free_bytes=60 * GIB)
    assert donor_bytes(None, ranks=1, memory=memory) == 16 * GIB
    assert donor_bytes(None, ranks=4, memory=memory) == 4 * GIB
    busy = HostMemory(total_bytes=64 * GIB, free_bytes=10 * GIB)
    assert donor_bytes(None, ranks=1, memory=busy) == 5 * GIB


def test_a_containers_limit_counts_and_its_cached_files_are_free(tmp_path):
    root = machine(
        tmp_path,
        total=64 * GIB,
        free=60 * GIB,
        memory_max=f"{16 * GIB}\n",
        memory_current=f"{10 * GIB}\n",
        memory_stat=f"anon 5\ninactive_file {3 * GIB}\n",
    )
    assert HostMemory.read(root) == HostMemory(total_bytes=16 * GIB, free_bytes=9 * GIB)


def test_a_container_without_a_limit_has_the_machines(tmp_path):
    root = machine(tmp_path, total=8 * GIB, free=4 * GIB, memory_max="max\n", memory_current="7\n")
    assert HostMemory.read(root) == HostMemory(total_bytes=8 * GIB, free_bytes=4 * GIB)


def test_more_than_is_free_is_refused_by_name():
    memory = HostMemory(total_bytes=64 * GIB, free_bytes=20 * GIB)
    assert donor_bytes(10 * GIB, ranks=2, memory=memory) == 10 * GIB
    with pytest.raises(SettingsError, match="host_donor_bytes"):
        donor_bytes(10 * GIB + 1, ranks=2, memory=memory)


def test_a_system_that_says_nothing_gets_a_small_share(tmp_path):
    assert HostMemory.read(tmp_path) is None
    assert donor_bytes(None, ranks=8, memory=None) == 2 * GIB
    assert donor_bytes(5 * GIB, ranks=1, memory=None) == 5 * GIB
