"""Engine logs of a pod, through ``kubectl logs``."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from sembench.errors import EndpointError, UsageError

_TIMEOUT_SECONDS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class PodLog:
    """Which lines of which container."""

    namespace: str
    pod: str
    container: str | None = None
    tail: int | None = 2000
    since: str | None = None
    since_time: str | None = None

    def __post_init__(self) -> None:
        if self.since and self.since_time:
            raise UsageError("--since and --since-time: kubectl takes one of the two")
        for flag, value in (("--namespace", self.namespace), ("--pod", self.pod)):
            if not value or value.startswith("-"):
                raise UsageError(f"{flag}: a name expected, got {value!r}")

    def command(self) -> list[str]:
        """The kubectl call. A time window replaces the tail: it already bounds the lines."""
        command = ["kubectl", "logs", "--namespace", self.namespace, self.pod]
        if self.container:
            command += ["--container", self.container]
        if self.since:
            command += [f"--since={self.since}"]
        elif self.since_time:
            command += [f"--since-time={self.since_time}"]
        elif self.tail is not None:
            command += [f"--tail={self.tail}"]
        return command


def collect(log: PodLog, output: Path) -> None:
    """Write the pod's log to `output`; the file appears only when it is complete.

    Raises
    ------
    EndpointError
        If kubectl is not there or fails; its own message is passed on.
    """
    if shutil.which("kubectl") is None:
        raise EndpointError("kubectl is not on PATH; install it, or fetch the log by other means")
    output.parent.mkdir(parents=True, exist_ok=True)
    unfinished = output.with_name(output.name + ".unfinished")
    try:
        with unfinished.open("wb") as stream:
            done = subprocess.run(
                log.command(),
                stdout=stream,
                stderr=subprocess.PIPE,
                timeout=_TIMEOUT_SECONDS,
                check=False,
            )
        if done.returncode != 0:
            message = done.stderr.decode("utf-8", errors="replace").strip()
            raise EndpointError(f"kubectl logs failed ({done.returncode}): {message[:300]}")
        unfinished.replace(output)
    except subprocess.TimeoutExpired as error:
        raise EndpointError(f"kubectl logs took over {_TIMEOUT_SECONDS} seconds") from error
    finally:
        unfinished.unlink(missing_ok=True)
