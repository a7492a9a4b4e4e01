"""A file for parsers that read files; in memory if the system supports it."""

from __future__ import annotations

import atexit
import os
import tempfile
from functools import cache
from pathlib import Path


def scratch_file(data: bytes, suffix: str) -> Path:
    """Write the data to this process's scratch file, overwriting one with the same suffix."""
    path = Path(_folder().name) / f"input{suffix}"
    path.write_bytes(data)
    return path


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = tempfile.TemporaryDirectory(prefix="semblend-fuzz-", dir=memory)
    atexit.register(folder.cleanup)
    return folder
