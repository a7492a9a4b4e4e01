"""Where a figure comes from: versions, command, host, the state of the source tree."""

from __future__ import annotations

import platform
import re
import shlex
import socket
import subprocess
import sys
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import sembench
from sembench.ids import file_sha256
from sembench.results import RunMetadata

MASK = "***"
SECRET_NAME = re.compile(r"api[-_]?key|secret|password|passwd|credential|_token$", re.IGNORECASE)
"""Flags and variables whose values never enter a result."""

_REPORTED_PACKAGES = (
    "datasets",
    "httpx",
    "numpy",
    "sglang",
    "tokenizers",
    "torch",
    "transformers",
    "vllm",
)


def utc_now() -> str:
    """The time now, in UTC, to the second, in ISO 8601."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def package_version(name: str) -> str | None:
    """The installed version of a distribution, read without importing it."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def environment() -> dict[str, Any]:
    """Interpreter, platform, host and the versions of packages that affect figures."""
    packages = {name: package_version(name) for name in _REPORTED_PACKAGES}
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "host": socket.gethostname(),
        "packages": {name: found for name, found in packages.items() if found is not None},
    }


def command_line() -> str:
    """The command as one could type it again."""
    program = Path(sys.argv[0]).name if sys.argv else "sembench"
    if program == "__main__.py":
        program = "python -m sembench"
    return " ".join([program, *map(shlex.quote, _without_secrets(sys.argv[1:]))])


def _without_secrets(arguments: list[str]) -> list[str]:
    """Mask the values of keys, tokens and passwords, because results are shared."""
    shown: list[str] = []
    for position, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        before = arguments[position - 1] if position else ""
        if before.startswith("-") and SECRET_NAME.search(before) and not argument.startswith("-"):
            shown.append(MASK)
        elif equals and value and SECRET_NAME.search(name):
            shown.append(f"{name}={MASK}")
        else:
            shown.append(argument)
    return shown


def git_state(folder: Path | None = None) -> tuple[str | None, bool | None]:
    """Commit and dirty flag of the source tree around this package; nulls outside a repository."""
    root = folder or Path(sembench.__file__).resolve().parent
    sha = _git(root, "rev-parse", "HEAD")
    if sha is None:
        return None, None
    changes = _git(root, "status", "--porcelain", "--untracked-files=no")
    return sha, None if changes is None else bool(changes)


def run_metadata(
    *,
    engine: str,
    manifest: Path | None,
    run_id: str | None = None,
    arm: str = "single",
    engine_version: str | None = None,
    backend_id: str | None = None,
    baseline_id: str | None = None,
) -> RunMetadata:
    """The identity of a run that starts now, with a new id unless `run_id` is given."""
    sha, dirty = git_state()
    return RunMetadata(
        run_id=run_id or uuid.uuid4().hex[:16],
        engine=engine,
        manifest_path=None if manifest is None else str(manifest),
        manifest_sha256=None if manifest is None else file_sha256(manifest),
        arm=arm,
        engine_version=engine_version,
        backend_id=backend_id,
        baseline_id=baseline_id,
        sembench_version=sembench.__version__,
        git_sha=sha,
        git_dirty=dirty,
        semblend_version=package_version("semblend"),
        timestamp_utc=utc_now(),
        python_version=platform.python_version(),
        run_host=socket.gethostname(),
    )


def run_config(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration stored in a result: the flags as given, and the command line."""
    plain = {
        name: str(value) if isinstance(value, Path) else value for name, value in flags.items()
    }
    return {**plain, "command": command_line()}


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
