"""Options of the live commands, so that a flag means one thing in all of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from sembench.errors import MissingExtraError, UsageError
from sembench.live.flags import EngineFlags, parse_environment
from sembench.live.replay import Arm
from sembench.provenance import MASK, SECRET_NAME, run_config

Output = Annotated[Path, typer.Option("--output", help="Result file to write.")]
Model = Annotated[str, typer.Option("--model", help="Model name the endpoint serves.")]
ApiKey = Annotated[
    str,
    typer.Option(
        "--api-key", envvar="SEMBENCH_API_KEY", help="Bearer token; never part of a result."
    ),
]
RunId = Annotated[
    str | None, typer.Option("--run-id", help="Identity of the run; left out, a new one.")
]
ArmOption = Annotated[
    Arm, typer.Option("--arm", help="cold: no donors; warm or single: donors first.")
]
BackendId = Annotated[str | None, typer.Option("--backend-id", help="Name of this backend.")]
BaselineId = Annotated[
    str | None, typer.Option("--baseline-id", help="Name of what it is compared with.")
]
EngineVersion = Annotated[str | None, typer.Option("--engine-version", help="Engine's version.")]
SkipVerify = Annotated[
    bool, typer.Option("--skip-verify", help="Do not ask the endpoint who it is first.")
]
ServeCommand = Annotated[
    str, typer.Option("--engine-serve-command", help="The command the engine was started with.")
]
ServeCommandFile = Annotated[
    Path | None, typer.Option("--engine-serve-command-file", help="A file that holds it.")
]
EngineEnv = Annotated[
    list[str] | None, typer.Option("--engine-env", help="NAME=VALUE of the engine, repeatable.")
]
MetricsUrl = Annotated[
    list[str] | None,
    typer.Option("--metrics-url", help="Prometheus page of an engine, repeatable."),
]
RequireFlags = Annotated[
    bool,
    typer.Option(
        "--require-phase0-flags", help="Exit 3 where the engine's flags spoil a comparison."
    ),
]
QualityThreshold = Annotated[
    float, typer.Option("--quality-threshold", min=0, max=1, help="Answer recall that passes.")
]
PostDonorDelay = Annotated[
    float, typer.Option("--post-donor-delay-ms", min=0, help="Pause between donors and recipient.")
]
Cooldown = Annotated[float, typer.Option("--cooldown-ms", min=0, help="Pause after each request.")]
Warmup = Annotated[
    int, typer.Option("--warmup-requests", min=0, help="Requests before the first measured one.")
]
Paired = Annotated[
    bool, typer.Option("--paired", help="Serve every recipient cold and warm, and compare.")
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Take up a stopped run beside the output file.")
]
ContaminationCheck = Annotated[
    bool,
    typer.Option(
        "--contamination-check",
        help="Repeat every recipient, to see whether approximate K/V came back as exact.",
    ),
]
CaptureLogprobs = Annotated[
    bool, typer.Option("--capture-logprobs", help="Ask for log probabilities, for KL.")
]
TopLogprobs = Annotated[
    int, typer.Option("--top-logprobs-num", min=1, max=20, help="How many a token.")
]
ConnectorAudit = Annotated[
    Path | None,
    typer.Option("--connector-audit", help="Audit JSONL of the connector, joined to the rows."),
]
MaxConsecutiveErrors = Annotated[
    int,
    typer.Option(
        "--max-consecutive-errors",
        min=0,
        help="Stop (resumably) after so many failures in a row; 0 never stops.",
    ),
]
IsolateBySalt = Annotated[
    bool | None,
    typer.Option(
        "--isolate-by-salt/--no-isolate-by-salt",
        help=(
            "Give every item and arm a cache_salt of its own, so that items do not serve one "
            "another; left out, wherever there is no --reset-url and the endpoint takes a salt."
        ),
    ),
]


def recorded(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration a result carries: the flags without their secrets."""
    shown = dict(flags)
    shown["engine_env"] = [
        f"{name}={MASK}" if SECRET_NAME.search(name := pair.partition("=")[0]) else pair
        for pair in flags.get("engine_env") or ()
    ]
    if "api_key" in shown:
        shown["api_key"] = bool(shown["api_key"])
    return run_config(shown)


def require_http() -> None:
    """Raise a MissingExtraError that names the extra where httpx is not installed."""
    try:
        import httpx  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(
            package="httpx", extra="benchmarks", purpose="a live run"
        ) from error


def engine_flags(
    command: str, command_file: Path | None, environment: list[str] | None, *, require: bool
) -> EngineFlags:
    """The engine's flags as told; checked (exit 3) where required."""
    if command and command_file is not None:
        raise UsageError("--engine-serve-command and its -file: one of the two expected")
    if command_file is not None:
        try:
            command = command_file.read_text(encoding="utf-8").strip()
        except OSError as error:
            raise UsageError(f"--engine-serve-command-file: {error}") from error
    flags = EngineFlags(serve_command=command, environment=parse_environment(environment or []))
    if require:
        flags.require()
    return flags
