"""Several machines on one: network namespaces on a bridge, each with its name and its own files.

Only inside a namespace of one's own, which also ends everything: see :func:`inside`. A machine has
an address the others know by its name, every port to itself, and what is mounted for it.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_ROOT_OF_ITS_OWN = """
set -euo pipefail
root=$1 hosts=$2; shift 2
mount -t tmpfs none "$root"
for each in /*; do
    if [ -L "$each" ]; then cp -P "$each" "$root/"
    elif [ -d "$each" ]; then mkdir "$root$each"; mount --rbind "$each" "$root$each"; fi
done
mount --bind "$hosts" "$root/etc/hosts"
while [ "$1" != -- ]; do
    mkdir -p "$root$2"; mount --bind "$1" "$root$2"; shift 2
done
shift
exec chroot "$root" "$@"
"""


def inside(module: str, *arguments: str, timeout_s: float = 540.0) -> str:
    """Run `python -m module arguments…` where machines can be made; its output."""
    done = subprocess.run(
        [
            *("unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"),
            *(sys.executable, "-m", module, *arguments),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


class Machines:
    """The bridge and who is on it."""

    def __init__(self, folder: Path, *names: str) -> None:
        self.folder = folder
        self.addresses = {name: f"10.77.0.{number}" for number, name in enumerate(names, 11)}
        self._hosts = folder / "hosts"
        lines = [f"{address} {name}\n" for name, address in self.addresses.items()]
        self._hosts.write_text("127.0.0.1 localhost\n" + "".join(lines))
        _run("ip link set lo up")
        _run("ip link add br0 type bridge")
        _run("ip addr add 10.77.0.1/24 dev br0")
        _run("ip link set br0 up")
        for name in names:
            self._add(name)
        # This process knows the names, too.
        _run(f"mount --bind {self._hosts} /etc/hosts")

    def _add(self, name: str) -> None:
        network = self._network(name)
        network.touch()
        _run(f"unshare --net={network} true")
        link = f"v{len(list(self.folder.glob('*.net')))}"
        _run(f"ip link add {link} type veth peer name eth0 netns {network}")
        _run(f"ip link set {link} master br0 up")
        for step in ("link set lo up", f"addr add {self.addresses[name]}/24 dev eth0"):
            _run(f"nsenter --net={network} ip {step}")
        _run(f"nsenter --net={network} ip link set eth0 up")
        (self.folder / f"{name}.root").mkdir()

    def command(
        self, name: str, command: Sequence[str], *, mounts: Mapping[str, Path] | None = None
    ) -> list[str]:
        """The command line that runs a command on a machine; `mounts` by their place there."""
        placed = [text for there, here in (mounts or {}).items() for text in (str(here), there)]
        root = self.folder / f"{name}.root"
        return [
            *("nsenter", f"--net={self._network(name)}", "unshare", "--mount"),
            *("bash", "-c", _ROOT_OF_ITS_OWN, "machine", str(root), str(self._hosts)),
            *(*placed, "--", *command),
        ]

    def start(
        self,
        name: str,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        mounts: Mapping[str, Path] | None = None,
        label: str = "",
    ) -> subprocess.Popen[bytes]:
        """A process that goes on; its words are in NAME.log."""
        with (self.folder / f"{label or name}.log").open("wb") as log:
            return subprocess.Popen(
                self.command(name, command, mounts=mounts),
                env=dict(env),
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )

    def _network(self, name: str) -> Path:
        return self.folder / f"{name}.net"


def _run(command: str) -> None:
    subprocess.run(shlex.split(command), check=True)
