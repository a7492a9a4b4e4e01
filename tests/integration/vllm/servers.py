"""`vllm serve` as users start it, in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

START_S = 240.0
EXAMPLES = Path(__file__).parents[3] / "examples" / "vllm"
SIZE = (
    "--served-model-name=m",
    "--dtype=float32",
    "--enforce-eager",
    "--max-model-len=2048",
    "--kv-cache-memory-bytes=128M",
    "--block-size=32",
)


@contextlib.contextmanager
def vllm_server(
    model: str, *, log: Path, transfer: dict[str, Any], arguments: tuple[str, ...] = ()
) -> Iterator[str]:
    """The base URL of a server that is ready; its log is in `log`."""
    config = f"--kv-transfer-config={json.dumps(transfer)}"
    with _served(["vllm", "serve", model, config, *arguments], log) as url:
        yield url


@contextlib.contextmanager
def example_server(name: str, model: str, *, log: Path) -> Iterator[str]:
    """A configuration of examples/vllm, started by the script that lies beside it."""
    with _served(["bash", str(EXAMPLES / "serve.sh"), name, model], log) as url:
        yield url


@contextlib.contextmanager
def _served(command: list[str], log: Path) -> Iterator[str]:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    environment = {
        **os.environ,
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
        "VLLM_LOGGING_LEVEL": "INFO",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    command = [*command, *SIZE, "--host=127.0.0.1", f"--port={port}"]
    with log.open("w") as output:
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            url = f"http://127.0.0.1:{port}"
            _wait(process, url, log)
            yield url
        finally:
            process.terminate()
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        if process.poll() is not None:
            raise RuntimeError(f"vllm serve ended:\n{log.read_text()[-20_000:]}")
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{url}/health", timeout=2.0).status_code == 200:
                return
        time.sleep(0.5)
    raise RuntimeError(f"vllm serve was not ready in {START_S} s:\n{log.read_text()[-20_000:]}")
