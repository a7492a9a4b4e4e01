"""NIXL: reads K/V straight from the memory of the worker that shares it.

A shared folder holds only descriptors (who, where, how long). The bytes go from worker to
worker over whatever link NIXL finds. What a worker shares disappears with its process.
"""

from __future__ import annotations

import base64
import importlib
import json
import threading
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from semblend.core.errors import MissingExtraError, StorageError
from semblend.core.faults import FaultPoint, fault_point
from semblend.fleet.transport.folder import FolderStore
from semblend.fleet.transport.store import Buffer

_MODULES = ("nixl._api", "nixl_cu12._api", "nixl_cu13._api")
_DONE, _BUSY = "DONE", "PROC"


class NixlStore:
    """One NIXL agent and the descriptors of all workers' objects. Thread-safe.

    Parameters
    ----------
    folder
        Where descriptors are; shared by the fleet.
    timeout_s
        How long a read may take; after that the tokens are computed.
    """

    backend = "nixl"

    def __init__(self, folder: Path, *, timeout_s: float = 10.0) -> None:
        api = _api()
        self._name = f"semblend-{uuid.uuid4().hex}"
        self._descriptors = FolderStore(folder)
        self._timeout_s = timeout_s
        self._agent: Any = api.nixl_agent(
            self._name, api.nixl_agent_config(enable_prog_thread=True, backends=["UCX"])
        )
        self._shared: dict[str, tuple[npt.NDArray[np.uint8], Any]] = {}
        self._lock = threading.Lock()

    @fault_point(FaultPoint.TRANSPORT_WRITE)
    def put(self, name: str, parts: Sequence[Buffer]) -> None:
        """Keep an object in this process's memory and publish where it is."""
        data = np.frombuffer(b"".join(parts), dtype=np.uint8).copy()
        with self._lock:
            self._drop(name)
            registered = self._agent.register_memory(
                [(data.ctypes.data, data.nbytes, 0, name[:16])], "DRAM"
            )
            self._shared[name] = (data, registered)
            metadata = self._agent.get_agent_metadata()
        record = {
            "agent": self._name,
            "metadata": base64.b64encode(metadata).decode(),
            "address": data.ctypes.data,
            "nbytes": data.nbytes,
        }
        self._descriptors.put(name, [json.dumps(record).encode()])

    @fault_point(FaultPoint.TRANSPORT_READ)
    def get(self, name: str) -> Buffer | None:
        """Read an object from the worker that shares it."""
        with self._lock:
            mine = self._shared.get(name)
        if mine is not None:
            return mine[0].data
        raw = self._descriptors.get(name)
        if raw is None:
            return None
        try:
            record = json.loads(bytes(raw))
            metadata = base64.b64decode(record["metadata"])
            address, nbytes = int(record["address"]), int(record["nbytes"])
        except (ValueError, KeyError, TypeError) as error:
            raise StorageError(f"nixl descriptor: {error}") from error
        with self._lock:
            return self._read(metadata, address, nbytes)

    def remove(self, name: str) -> None:
        self._descriptors.remove(name)
        with self._lock:
            self._drop(name)

    def close(self) -> None:
        for name in list(self._shared):
            self.remove(name)

    def _drop(self, name: str) -> None:
        held = self._shared.pop(name, None)
        if held is not None:
            self._agent.deregister_memory(held[1])

    def _read(self, metadata: bytes, address: int, nbytes: int) -> Buffer:
        target = np.empty(nbytes, dtype=np.uint8)
        registered = self._agent.register_memory([(target.ctypes.data, nbytes, 0, "in")], "DRAM")
        try:
            peer = self._agent.add_remote_agent(metadata)
            handle = self._agent.initialize_xfer(
                "READ",
                self._agent.get_xfer_descs([(target.ctypes.data, nbytes, 0)], "DRAM"),
                self._agent.get_xfer_descs([(address, nbytes, 0)], "DRAM"),
                peer.decode() if isinstance(peer, bytes) else peer,
            )
            self._finish(handle)
        except StorageError:
            raise
        except Exception as error:
            raise StorageError(f"nixl: {error}") from error
        finally:
            self._agent.deregister_memory(registered)
        return target.data

    def _finish(self, handle: Any) -> None:
        deadline = time.monotonic() + self._timeout_s
        state = self._agent.transfer(handle)
        while state == _BUSY and time.monotonic() < deadline:
            time.sleep(0.0005)
            state = self._agent.check_xfer_state(handle)
        self._agent.release_xfer_handle(handle)
        if state != _DONE:
            raise StorageError(f"nixl: the transfer ended in state {state}")


def _api() -> Any:
    for name in _MODULES:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise MissingExtraError(package="nixl-cu12", extra="nixl", purpose="SEMBLEND_TRANSPORT=nixl")
