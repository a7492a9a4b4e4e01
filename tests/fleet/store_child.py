"""A process of its own that shares an object, or reads one: `put|get kind address name`."""

from __future__ import annotations

import sys
from pathlib import Path

from semblend.fleet.transport.store import ObjectStore, open_store


def main() -> None:
    action, address, name = sys.argv[1:4]
    if address.startswith("mooncake:"):
        from semblend.fleet.transport.mooncake import MooncakeStore

        store: ObjectStore = MooncakeStore(
            address.partition(":")[2], segment_bytes=64 << 20, buffer_bytes=32 << 20
        )
    else:
        store = open_store(address)
    if action == "put":
        store.put(name, [b"head", bytes(range(256)) * 4096])
        print("ready", flush=True)
        sys.stdin.readline()
        store.remove(name)
    else:
        data = store.get(name)
        Path(sys.argv[4]).write_bytes(b"" if data is None else bytes(data))
    print("done", flush=True)
    store.close()


if __name__ == "__main__":
    main()
