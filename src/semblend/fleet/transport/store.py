"""What SemBlend asks of a store that workers share, and how one is named."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, TypeAlias

from semblend.core.errors import SettingsError

Buffer: TypeAlias = bytes | bytearray | memoryview


class ObjectStore(Protocol):
    """Named byte strings. Names are 64 hex digits that say nothing about the content.

    Every method may raise StorageError; to a reader that is a miss.
    """

    backend: str
    """The kind of store, as events name it."""

    def put(self, name: str, parts: Sequence[Buffer]) -> None:
        """Store the parts, one behind the other, under a name; replaces what was there."""
        ...

    def get(self, name: str) -> Buffer | None:
        """What is stored under a name, or None."""
        ...

    def remove(self, name: str) -> None:
        """Forget a name; nothing happens if it is not there."""
        ...

    def close(self) -> None:
        """Let go of connections; what this process served itself is gone with it."""
        ...


def open_store(address: str) -> ObjectStore:
    """The store of an address: folder:/path, mooncake:master:port or nixl:/path.

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
        f"SEMBLEND_TRANSPORT {address!r}: folder:/path, mooncake:master:port or nixl:/path expected"
    )
