"""Workers of other engines, each in its engine's own environment, spoken to by lines."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from semblend.core.namespace import Namespace
from semblend.fleet.directory.answers import Found
from semblend.fleet.directory.directory import Directory
from semblend.fleet.keys import FleetKeys
from semblend.fleet.sketch import sketch
from tests.fleet.support import until

ROOT = Path(__file__).resolve().parents[2]
SECRET = "the secret of this fleet"


class LineWorker:
    """A process that answers every line with one that begins with @."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process = process
        self._log = log

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """Say something and hear what comes of it."""
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()
        return self.heard()

    def leave(self, timeout: float = 180.0) -> None:
        """An orderly end."""
        self._process.stdin.close()
        assert self._process.wait(timeout=timeout) == 0, self._log.read_text()[-3000:]

    def kill(self) -> None:
        """An end that asks nobody."""
        self._process.kill()
        self._process.wait()

    def heard(self) -> dict[str, Any]:
        for line in self._process.stdout:
            if line.startswith("@"):
                return json.loads(line[1:])
        raise AssertionError(self._log.read_text()[-3000:])


def lend(folder: Path, *packages: str) -> Path:
    """A folder of packages that engines' own environments lack, of which we have some."""
    folder.mkdir()
    for package in packages:
        place = Path(importlib.util.find_spec(package).origin).parent
        (folder / package).symlink_to(place)
        for libraries in place.parent.glob(f"{package}*.libs"):
            (folder / libraries.name).symlink_to(libraries)
    return folder


@contextmanager
def line_worker(
    python: Path,
    *command: str,
    worker_id: str,
    nats_url: str,
    folder: Path,
    packages: Sequence[str] = ("nats",),
    on: Callable[[list[str]], list[str]] = list,
    **settings: str,
) -> Iterator[LineWorker]:
    """Start `python -m command…` as a member of the fleet; killed at the end.

    `settings` are more SEMBLEND_* variables, `packages` are lent to the engine's environment,
    and `on` makes the command line one for another machine.
    """
    lent = lend(folder / f"{worker_id}-lent", *packages)
    env = {
        **os.environ,
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}:{lent}",
        "SEMBLEND_NATS_URL": nats_url,
        "SEMBLEND_NAMESPACE_SECRET": SECRET,
        "SEMBLEND_WORKER_ID": worker_id,
        "SEMBLEND_FLEET_SAMPLING": "2",
        "SEMBLEND_EMBEDDER": "none",
        "SEMBLEND_ALLOW_UNCERTIFIED": "1",
        **settings,
    }
    log = folder / f"{worker_id}.log"
    with log.open("w") as errors:
        process = subprocess.Popen(
            on([str(python), "-m", *command]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=env,
            cwd=ROOT,
        )
        worker = LineWorker(process, log)
        try:
            assert worker.heard() == {"ready": True}
            yield worker
        finally:
            process.stdin.close()
            process.stdout.close()
            process.kill()
            process.wait()


def found_by_a_gateway(directory: Directory, tokens: Any, *, cache_salt: str) -> Found:
    """What a replica finds for a prompt under the one namespace its workers have told it."""
    # A replica that began to listen in the middle of a worker's first words asks for them again.
    until(directory.namespace_kinds, "the worker to say what it serves")
    (parts,) = directory.namespace_kinds()
    namespace = Namespace(**parts, tenant="none", template="none", cache_salt=cache_salt)
    keys = FleetKeys.of(namespace, SECRET.encode())
    drawn = sketch(np.asarray(tokens, dtype=np.int32), keys, sampling=2)
    return directory.lookup(drawn, keys.namespace_id)
