"""How much host memory donors may take: a share of it, checked against what is free.

Inside a container its limit counts, not the machine's memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from semblend.core.errors import SettingsError

_SHARE_OF_ALL = 4
"""Donors use at most one in this many bytes, over all ranks of a machine, ..."""
_SHARE_OF_FREE = 2
"""... and at most one in this many free bytes."""
_UNKNOWN_BYTES = 2 << 30
"""Used if the system does not report its memory."""
_LEAST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """The memory this process may use, and how much of it is free."""

    total_bytes: int
    free_bytes: int

    @classmethod
    def read(cls, root: Path = Path("/")) -> HostMemory | None:
        """Read it from the system; None if that is not possible."""
        info = _numbers(root / "proc/meminfo")
        if "MemTotal:" not in info or "MemAvailable:" not in info:
            return None
        total, free = info["MemTotal:"] * 1024, info["MemAvailable:"] * 1024
        group = root / "sys/fs/cgroup"
        limit, used = _number(group / "memory.max"), _number(group / "memory.current")
        if limit is not None and used is not None and limit < total:
            # Cached files are dropped when memory is needed.
            cached = _numbers(group / "memory.stat").get("inactive_file", 0)
            total, free = limit, min(free, limit - used + cached)
        return cls(total_bytes=total, free_bytes=max(0, free))


def donor_bytes(asked: int | None, *, ranks: int, memory: HostMemory | None) -> int:
    """Bytes of host memory for the donors of one of `ranks` workers on this machine.

    Raises
    ------
    SettingsError
        If more was requested than is free.
    """
    if asked is None:
        if memory is None:
            return _UNKNOWN_BYTES
        share = min(memory.total_bytes // _SHARE_OF_ALL, memory.free_bytes // _SHARE_OF_FREE)
        return max(_LEAST_BYTES, share // ranks)
    if memory is not None and asked * ranks > memory.free_bytes:
        raise SettingsError(
            f"host_donor_bytes = {asked} for each of {ranks} ranks: only {memory.free_bytes} bytes "
            f"of host memory are free"
        )
    return asked


def _numbers(path: Path) -> dict[str, int]:
    """The first number of every line, by the word before it."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return {}
    words = (line.split() for line in lines)
    return {word[0]: int(word[1]) for word in words if len(word) > 1 and word[1].isdigit()}


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None  # missing, or "max"
