"""Mooncake Store between machines: a master, one worker that shares and one that reads.

python -m tests.fleet.mooncake_inside FOLDER MASTER-PROGRAM
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from tests.fleet.machines import Machines
from tests.fleet.support import until

NAME = "ab" * 32


def main() -> None:
    folder, program = Path(sys.argv[1]), sys.argv[2]
    machines = Machines(folder, "master", "giver", "taker")
    machines.start("master", [program, "-port", "50051", "-metrics_port", "9103"], env=os.environ)
    until(lambda: listens("master", 50051), "Mooncake's master")
    child = [sys.executable, "-m", "tests.fleet.store_child"]
    with subprocess.Popen(
        machines.command("giver", [*child, "put", "mooncake:master:50051", NAME]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=(folder / "giver.log").open("wb"),
        text=True,
    ) as giver:
        assert giver.stdin is not None
        assert giver.stdout is not None
        if not any(line == "ready\n" for line in giver.stdout):
            raise SystemExit((folder / "giver.log").read_text()[-3000:])
        got = str(folder / "got")
        subprocess.run(
            machines.command("taker", [*child, "get", "mooncake:master:50051", NAME, got]),
            check=True,
            timeout=120,
        )
        giver.communicate("stop\n", timeout=60)


def listens(host: str, port: int) -> bool:
    """Whether somebody does."""
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) == 0


if __name__ == "__main__":
    main()
