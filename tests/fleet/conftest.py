"""Real servers for tests of the fleet, started and stopped here."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fleet.charts import renderer
from tests.fleet.support import need, until


class NatsServer:
    """One nats-server with JetStream on a port of its own; may be stopped and started again."""

    def __init__(self, folder: Path, *, jetstream: bool = True) -> None:
        self._folder = folder
        self._jetstream = jetstream
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        self._process = subprocess.Popen(
            [
                *("nats-server", "-a", "127.0.0.1", "-p", str(self.port)),
                *(("-js", "-sd", str(self._folder)) if self._jetstream else ()),
            ],
            stderr=subprocess.DEVNULL,
        )
        until(self._answers, "nats-server to listen")

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


@pytest.fixture
def nats_server(tmp_path: Path) -> Iterator[NatsServer]:
    need(shutil.which("nats-server"), "nats-server")
    need(_importable("nats"), "nats-py")
    server = NatsServer(tmp_path / "jetstream")
    yield server
    server.stop()


@pytest.fixture
def core_nats_server(tmp_path: Path) -> Iterator[NatsServer]:
    """One without JetStream."""
    need(shutil.which("nats-server"), "nats-server")
    need(_importable("nats"), "nats-py")
    server = NatsServer(tmp_path, jetstream=False)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def module_nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """For engines that take long to start and serve several tests."""
    need(shutil.which("nats-server"), "nats-server")
    need(_importable("nats"), "nats-py")
    server = NatsServer(tmp_path_factory.mktemp("jetstream"))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def render(tmp_path_factory: pytest.TempPathFactory) -> Callable[[dict[str, Any]], Any]:
    """The chart's documents for some values."""
    return renderer(tmp_path_factory.mktemp("chart"))


def _importable(name: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(name) is not None
