"""The four engines of the four-way table: how each is started, plain and with SemBlend."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

import httpx

from benchmarks.vllm_connector import WORKER, transfer
from sembench.errors import EndpointError, UsageError

ROOT = Path(__file__).resolve().parents[2]
SHIMS = ROOT / "tests" / "integration" / "sglang" / "shims"
"""What SGLang imports of GPU packages, empty: it then starts on a CPU."""


class Arm(StrEnum):
    """One engine, plain or with SemBlend in it."""

    VLLM = "vllm"
    VLLM_SEMBLEND = "vllm+semblend"
    SGLANG = "sglang"
    SGLANG_SEMBLEND = "sglang+semblend"

    @property
    def is_vllm(self) -> bool:
        """Whether it is a vLLM."""
        return self.value.startswith("vllm")

    @property
    def ours(self) -> bool:
        """Whether SemBlend is in it."""
        return self.value.endswith("semblend")


def add_flags(flags: Any) -> None:
    """The flags that say how engines are started."""
    flags.add_argument("--model", required=True, help="folder or hub name of the model")
    flags.add_argument("--arms", nargs="+", type=Arm, choices=[*Arm], default=[*Arm])
    flags.add_argument(
        "--endpoint",
        action="append",
        default=[],
        metavar="ARM=URL",
        help="an engine that runs already; others are started here, one after another",
    )
    flags.add_argument("--vllm-python", default=".venv-vllm/bin/python", help="Python with vLLM")
    flags.add_argument(
        "--sglang-python", default=".venv-sglang/bin/python", help="Python with SGLang"
    )
    flags.add_argument("--vllm-arguments", default="", help="more flags of `vllm serve`")
    flags.add_argument("--sglang-arguments", default="", help="more flags of SGLang's server")
    flags.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    flags.add_argument("--dtype", default="auto", help="float32 on CPUs unless given")
    flags.add_argument(
        "--mode", default="segmented", help="of SemBlend; segmented needs a certificate"
    )
    flags.add_argument("--policy", help="recompute policy of segmented_experimental")
    flags.add_argument("--start-seconds", type=float, default=900.0, help="wait for a start")
    flags.add_argument("--logs", type=Path, default=Path("results/four_way"), help="their logs")


def running(flags: Any) -> dict[Arm, str]:
    """The engines that run already, by `--endpoint`."""
    found: dict[Arm, str] = {}
    for text in flags.endpoint:
        name, equals, url = text.partition("=")
        if name not in [*Arm] or not equals or not url:
            raise UsageError(f"--endpoint: ARM=URL expected with one of {', '.join(Arm)}: {text}")
        found[Arm(name)] = url
    return found


@contextlib.contextmanager
def served(arm: Arm, flags: Any) -> Iterator[str]:
    """The base URL of an engine: one that runs, or one that is started and stopped here.

    Raises
    ------
    EndpointError
        If it does not start; the message has the end of its log.
    """
    if arm in (urls := running(flags)):
        yield urls[arm]
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command, environment = start(arm, flags, port)
    flags.logs.mkdir(parents=True, exist_ok=True)
    log = flags.logs / f"{arm}.log"
    with log.open("w") as output:
        try:
            process = subprocess.Popen(
                command,
                env={**os.environ, **environment},
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        except OSError as error:
            option = "--vllm-python" if arm.is_vllm else "--sglang-python"
            raise UsageError(f"{option}: {command[0]} cannot be started ({error})") from error
        try:
            url = f"http://127.0.0.1:{port}"
            _wait(process, url, log, flags.start_seconds)
            yield url
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=30)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def start(arm: Arm, flags: Any, port: int) -> tuple[list[str], dict[str, str]]:
    """The command that starts an engine, and what it finds in its environment."""
    cpu = flags.device == "cpu" or (flags.device == "auto" and not shutil.which("nvidia-smi"))
    dtype = "float32" if cpu and flags.dtype == "auto" else flags.dtype
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {"PYTHONPATH": path, "HF_HUB_OFFLINE": os.environ.get("HF_HUB_OFFLINE", "1")}
    make = _vllm if arm.is_vllm else _sglang
    command, more = make(arm, flags, cpu)
    where = ["--host", "127.0.0.1", "--port", str(port), "--dtype", dtype]
    return [*command, *where, *_more(arm, flags)], {**environment, **more}


def _more(arm: Arm, flags: Any) -> list[str]:
    return shlex.split(flags.vllm_arguments if arm.is_vllm else flags.sglang_arguments)


def _vllm(arm: Arm, flags: Any, cpu: bool) -> tuple[list[str], dict[str, str]]:
    command = [
        *(flags.vllm_python, "-m", "vllm.entrypoints.cli.main", "serve", flags.model),
        *("--served-model-name", _name(flags), "--enable-prompt-tokens-details"),
    ]
    environment = {"VLLM_NO_USAGE_STATS": "1"}
    if cpu:
        command += ["--enforce-eager", "--block-size", "32"]
        environment |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    if arm.ours:
        configured = transfer(_options(flags))
        command += ["--worker-cls", WORKER, "--kv-transfer-config", json.dumps(configured)]
    return command, environment


def _sglang(arm: Arm, flags: Any, cpu: bool) -> tuple[list[str], dict[str, str]]:
    started = (
        ["-c", "from semblend.integration.sglang.launcher import run; run()"]
        if arm.ours
        else ["-m", "sglang.launch_server"]
    )
    command = [
        *(flags.sglang_python, *started, "--model-path", flags.model),
        *("--served-model-name", _name(flags), "--enable-cache-report", "--enable-metrics"),
    ]
    environment: dict[str, str] = {}
    if cpu:
        command += ["--device", "cpu", "--attention-backend", "torch_native"]
        command += ["--grammar-backend", "none", "--mem-fraction-static", "0.7"]
        command += ["--max-total-tokens", "65536"]
        path = os.pathsep.join([str(SHIMS), str(ROOT / "src"), str(ROOT)])
        environment |= {"SGLANG_USE_CPU_ENGINE": "1", "PYTHONPATH": path}
    if arm.ours:
        environment["SEMBLEND_SGLANG_CONFIG"] = json.dumps(_options(flags))
    return command, environment


def _options(flags: Any) -> dict[str, Any]:
    options: dict[str, Any] = {"mode": flags.mode, "min_prompt_tokens": 64}
    return {**options, "recompute_policy": flags.policy} if flags.policy else options


def _name(flags: Any) -> str:
    return Path(flags.model).name


def _wait(process: subprocess.Popen[bytes], url: str, log: Path, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if process.poll() is not None:
            raise EndpointError(f"{log}: the engine ended:\n{log.read_text()[-2000:]}")
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{url}/health", timeout=5.0, trust_env=False).status_code == 200:
                return
        time.sleep(0.5)
    raise EndpointError(f"{log}: not ready in {seconds:g} s:\n{log.read_text()[-2000:]}")
