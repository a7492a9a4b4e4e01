"""Inside a private network: two real vLLM workers that move donors through a shared store.

    unshare -n python -m tests.fleet.vllm_store_inside mooncake|nixl FOLDER

What happened is the last line, a JSON object.
"""

from __future__ import annotations

import importlib.util
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np

from tests.fleet.conftest import NatsServer
from tests.fleet.engines import MODEL
from tests.fleet.line_workers import ROOT, LineWorker, line_worker

PYTHON = ROOT / ".venv-vllm" / "bin" / "python"
COLD = {"reuse": False, "capture": False}
MASTER = 50051


def main() -> None:
    kind, folder = sys.argv[1], Path(sys.argv[2])
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    lent = lend(kind, folder / "packages")
    nats = NatsServer(folder / "jetstream")
    try:
        with store(kind, folder) as address:
            settings = {
                "nats_url": nats.url,
                "folder": folder,
                "SEMBLEND_TRANSPORT": address,
            }
            with worker("a", lent, settings) as owner, worker("b", lent, settings) as other:
                print(json.dumps(tell(kind, owner, other)), flush=True)
    finally:
        nats.stop()


def tell(kind: str, owner: LineWorker, other: LineWorker) -> dict[str, Any]:
    """One donor moves, one stays with its owner, who leaves."""
    ask(other, text(90, 900), COLD, salt="warm-up")  # how long its own prefill takes
    first, second = text(1, 700), text(2, 700)
    for number, document in enumerate((first, second)):
        ask(owner, np.concatenate([text(10 + number, 20), document, text(30, 2)]))
    for attempt in range(20):
        moved = np.concatenate([text(40 + attempt, 64), first, text(31, 2)])
        fetched = ask(other, moved, {"capture": False})
        if fetched["fetched"]:
            break
        time.sleep(0.5)  # the announcement is on its way
    local = ask(owner, moved, {"capture": False})
    # NIXL's libraries may crash in their own finalisers, behind Python's end: libnl, bundled twice.
    with suppress(AssertionError) if kind == "nixl" else nullcontext():
        owner.leave()
    lost = np.concatenate([text(80, 64), second, text(31, 2)])
    return {
        "fetched": fetched,
        "local": local,
        "gone": ask(other, lost, {"capture": False}),
        "cold": ask(other, lost, COLD, salt="cold"),
    }


def ask(
    asked: LineWorker, tokens: Any, hints: dict[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    return asked.ask({"tokens": tokens.tolist(), "hints": hints or {}, **more})


def text(seed: int, size: int) -> Any:
    return np.random.default_rng(seed).integers(300, 4000, size).astype(np.int32)


@contextmanager
def worker(name: str, lent: Path, settings: dict[str, Any]) -> Iterator[LineWorker]:
    # The line workers lend the log's client by the same way; the store's packages come behind it.
    path = f"{ROOT}:{settings['folder'] / f'vllm-{name}-lent'}:{lent}"
    events = settings["folder"] / f"vllm-{name}"
    events.mkdir()
    with line_worker(
        PYTHON,
        *("tests.fleet.vllm_worker", str(MODEL), str(events)),
        worker_id=events.name,
        PYTHONPATH=path,
        **settings,
    ) as found:
        yield found


@contextmanager
def store(kind: str, folder: Path) -> Iterator[str]:
    """The store's address, with its master running where it has one."""
    if kind == "nixl":
        yield f"nixl:{folder / 'descriptors'}"
        return
    program = Path(sys.executable).with_name("mooncake_master")
    with (
        (folder / "master.log").open("w") as log,
        subprocess.Popen(
            [str(program), "-port", str(MASTER), "-metrics_port", "9103"],
            stdout=log,
            stderr=subprocess.STDOUT,
        ) as master,
    ):
        try:
            for _ in range(100):
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", MASTER)) == 0:
                        break
                time.sleep(0.1)
            yield f"mooncake:127.0.0.1:{MASTER}"
        finally:
            master.kill()


def lend(kind: str, folder: Path) -> Path:
    """The store's client and its libraries, which vLLM's environment does not have."""
    names = ("mooncake",) if kind == "mooncake" else ("nixl", "nixl_cu12")
    spec = next(spec for spec in map(importlib.util.find_spec, names) if spec)
    folder.mkdir()
    for path in Path(str(spec.origin)).parents[1].iterdir():
        if path.name.startswith(kind):
            (folder / path.name).symlink_to(path)
    return folder


if __name__ == "__main__":
    main()
