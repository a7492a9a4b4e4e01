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
    """Which log lines of which container to read."""

    namespace: str
    pod: str
    container: str | None = None
    tail: int | None = 2000
    since: str | None = None
    since_time: str | None = None

    def __post_init__(self) -> None:
        if self.since and self.since_time:
            raise UsageError("give --since or --since-time, not both: kubectl takes only one")
        for flag, value in (("--namespace", self.namespace), ("--pod", self.pod)):
            if not value or value.startswith("-"):
                raise UsageError(f"{flag}: expected a name, got {value!r}")

    def command(self) -> list[str]:
        """The kubectl call. A time window replaces --tail, since it already limits the lines."""
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
    """Write the pod's log to `output`. The file appears only once it is complete.

    Raises
    ------
    EndpointError
        If kubectl is missing or fails; the message includes kubectl's own.
    """
    if shutil.which("kubectl") is None:
        raise EndpointError("kubectl is not on PATH; install it, or fetch the log another way")
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
