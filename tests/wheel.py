"""This repository as a user has it who was handed the wheel: built, and installed on its own."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledWheel:
    """A fresh environment with the wheel in it; the source tree is not on its path."""

    wheel: Path
    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def semblend(self) -> Path:
        """The command that the wheel installs."""
        return self.folder / "bin" / "semblend"

    def environment(self, home: Path) -> dict[str, str]:
        """Variables for its processes: a home of its own, and no way back to the source tree."""
        ours = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "SEMBLEND_"))}
        return {**ours, "HOME": str(home), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


CONNECTOR = ROOT / "packaging" / "semblend-vllm-connector"


def build_wheel(folder: Path, *, source: Path = ROOT) -> Path:
    """What `make wheel` builds of the project in `source`."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    subprocess.run([*command, "--wheel-dir", folder, source], check=True, timeout=300)
    name = "semblend_vllm_connector" if source == CONNECTOR else "semblend"
    (wheel,) = folder.glob(f"{name}-*.whl")
    return wheel


def install_wheel(wheel: Path, folder: Path) -> InstalledWheel:
    """Install it alone; its dependencies are those of this environment, to save minutes."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    installed = InstalledWheel(wheel=wheel, folder=folder)
    install = [sys.executable, "-m", "pip", "--python", installed.python, "install", "--quiet"]
    subprocess.run([*install, "--no-deps", "--no-index", wheel], check=True, timeout=300)
    # As plain lines: .pth files found there, our own editable install's among them, are not read.
    (site,) = folder.glob("lib/python*/site-packages")
    borrowed = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (site / "borrowed.pth").write_text("\n".join(borrowed) + "\n", encoding="utf-8")
    return installed


def shared_wheel(folder: Path) -> InstalledWheel:
    """Built and installed by the process that comes first; the others wait for it."""
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made, environment = folder / "made", folder / "environment"
        if made.exists():
            (wheel,) = folder.glob("semblend-*.whl")
            return InstalledWheel(wheel=wheel, folder=environment)
        installed = install_wheel(build_wheel(folder), environment)
        made.touch()
        return installed
