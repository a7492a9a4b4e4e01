"""Mooncake Store as the shared store, over TCP; every worker contributes memory."""

from __future__ import annotations

import importlib
import socket
from collections.abc import Sequence
from typing import Any

from semblend.core.errors import MissingExtraError, StorageError
from semblend.core.faults import FaultPoint, fault_point
from semblend.fleet.transport.store import Buffer

_SEGMENT_BYTES = 512 * 2**20
_BUFFER_BYTES = 128 * 2**20


class MooncakeStore:
    """A client of one Mooncake master. Peers find each other by handshake, without metadata server.

    Parameters
    ----------
    master
        host:port of the master.
    hostname
        This machine's address as others reach it; default: the one the master sees.
    segment_bytes
        Memory this worker contributes to the store.
    """

    backend = "mooncake"

    def __init__(
        self,
        master: str,
        *,
        hostname: str = "",
        segment_bytes: int = _SEGMENT_BYTES,
        buffer_bytes: int = _BUFFER_BYTES,
    ) -> None:
        try:
            module = importlib.import_module("mooncake.store")
        except ImportError as error:
            raise MissingExtraError(
                package="mooncake-transfer-engine-non-cuda",
                extra="mooncake",
                purpose="SEMBLEND_TRANSPORT=mooncake",
            ) from error
        self._store: Any = module.MooncakeDistributedStore()
        code = self._store.setup(
            hostname or _address_towards(master),
            "P2PHANDSHAKE",
            segment_bytes,
            buffer_bytes,
            "tcp",
            "",
            master,
        )
        if code:
            raise StorageError(f"mooncake master {master}: setup failed with code {code}")

    @fault_point(FaultPoint.TRANSPORT_WRITE)
    def put(self, name: str, parts: Sequence[Buffer]) -> None:
        """Store an object, replacing any with the same name."""
        data = b"".join(parts)
        code = self._store.put(name, data)
        if code:
            raise StorageError(f"mooncake: put failed with code {code}")

    @fault_point(FaultPoint.TRANSPORT_READ)
    def get(self, name: str) -> Buffer | None:
        if self._store.is_exist(name) != 1:
            return None
        data: bytes = self._store.get(name)
        return data or None

    def remove(self, name: str) -> None:
        """Remove an object. The master may keep it a few seconds longer for its readers."""
        self._store.remove(name)

    def close(self) -> None:
        """Leave the store; this worker's memory leaves with it."""
        self._store.close()


def _address_towards(master: str) -> str:
    """This machine's address towards the master; finding it sends no packet."""
    host, _, port = master.rpartition(":")
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, int(port)))
            return str(probe.getsockname()[0])
    except (OSError, ValueError) as error:
        raise StorageError(f"mooncake master {master!r}: expected host:port ({error})") from error
