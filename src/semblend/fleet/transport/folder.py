"""A folder that workers share, for development or for fleets with a fast network file system."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Sequence
from pathlib import Path

from semblend.core.errors import StorageError
from semblend.core.faults import FaultPoint, fault_point
from semblend.fleet.transport.store import Buffer

_NAME = re.compile(r"^[0-9a-f]{64}$")


class FolderStore:
    """One file per object, visible only once complete."""

    backend = "folder"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"shared folder {folder}: {error.strerror or error}") from error

    @fault_point(FaultPoint.TRANSPORT_WRITE)
    def put(self, name: str, parts: Sequence[Buffer]) -> None:
        """Write under another name, then rename."""
        final = self._path(name)
        partial = final.with_name(f"{name}.{uuid.uuid4().hex}.partial")
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(partial, flags, 0o600), "wb", buffering=0) as file:
                for part in parts:
                    view = memoryview(part).cast("B")
                    while view:
                        view = view[file.write(view) :]
            os.replace(partial, final)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise StorageError(f"shared folder: {error.strerror or error}") from error

    @fault_point(FaultPoint.TRANSPORT_READ)
    def get(self, name: str) -> Buffer | None:
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(self._path(name), flags), "rb", buffering=0) as file:
                return file.readall()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(f"shared folder: {error.strerror or error}") from error

    def remove(self, name: str) -> None:
        try:
            self._path(name).unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(f"shared folder: {error.strerror or error}") from error

    def close(self) -> None:
        """Nothing is held open."""

    def _path(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise StorageError("shared folder: expected a name of 64 hex digits")
        return self._folder / name
