"""The interface of a shared store, and how to open one by address."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, TypeAlias

from semblend.core.errors import SettingsError

Buffer: TypeAlias = bytes | bytearray | memoryview


class ObjectStore(Protocol):
    """Named byte strings. Names are 64 hex digits that say nothing about the content.

    Every method may raise StorageError, which a reader treats as a miss.
    """

    backend: str
    """The kind of store, as named in events."""

    def put(self, name: str, parts: Sequence[Buffer]) -> None:
        """Store the concatenated parts under a name, replacing what was there."""
        ...

    def get(self, name: str) -> Buffer | None:
        """What is stored under a name, or None."""
        ...

    def remove(self, name: str) -> None:
        """Remove a name; do nothing if it does not exist."""
        ...

    def close(self) -> None:
        """Close connections; what this process served itself disappears."""
        ...


def open_store(address: str) -> ObjectStore:
    """Open a store by address: folder:/path, mooncake:master:port or nixl:/path.

    Raises
    ------
    SettingsError
        If it is none of these.
    MissingExtraError
        If the package of the backend is not installed.
    """
    kind, _, place = address.partition(":")
    if kind == "folder" and place:
        from semblend.fleet.transport.folder import FolderStore

        return FolderStore(Path(place))
    if kind == "mooncake" and place:
        from semblend.fleet.transport.mooncake import MooncakeStore

        return MooncakeStore(place)
    if kind == "nixl" and place:
        from semblend.fleet.transport.nixl import NixlStore

        return NixlStore(Path(place))
    raise SettingsError(
        f"SEMBLEND_TRANSPORT {address!r}: expected folder:/path, mooncake:master:port or nixl:/path"
    )
