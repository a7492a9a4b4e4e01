"""A rotating file of JSON lines: FILE is current, FILE.1 the newest old one, and so on."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO


class RotatingLines:
    """Appends lines to a file of bounded size and keeps a bounded number of older ones."""

    def __init__(self, path: Path, *, max_bytes: int, files: int) -> None:
        """Open the file.

        Parameters
        ----------
        max_bytes
            Size at which the file is rotated; 0 never rotates.
        files
            Files to keep, including the current one.

        Raises
        ------
        OSError
            If it cannot be opened.
        """
        self._path = path
        self._max_bytes = max_bytes
        self._files = files
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: TextIO = path.open("a", encoding="utf-8")
        self._size = path.stat().st_size

    def write(self, line: str) -> None:
        """Append one line; rotate the file first if it would grow too large."""
        data = line + "\n"
        size = len(data.encode())
        if self._max_bytes and self._size and self._size + size > self._max_bytes:
            self._rotate()
        self._file.write(data)
        self._size += size

    def flush(self) -> None:
        """Pass everything to the operating system."""
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _rotate(self) -> None:
        self._file.close()
        self._aside(self._files).unlink(missing_ok=True)  # `files` may have been larger before
        for number in range(self._files - 1, 0, -1):
            older = self._aside(number - 1) if number > 1 else self._path
            if older.exists():
                older.replace(self._aside(number))
        if self._files == 1:
            self._path.unlink(missing_ok=True)
        self._file = self._path.open("a", encoding="utf-8")
        self._size = 0

    def _aside(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")
