"""Options shared by the live commands, so that a flag means the same in all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from sembench.errors import MissingExtraError, UsageError
from sembench.live.flags import EngineFlags, parse_environment
from sembench.live.replay import Arm
from sembench.provenance import MASK, SECRET_NAME, run_config, run_metadata
from sembench.quality import PASS_THRESHOLD
from sembench.results import RunMetadata
from sembench.spool import resumed_run_id
from sembench.terminal.shared_options import BlockSize, Manifest, MaxItems, TokenizerName

Output = Annotated[Path, typer.Option("--output", help="Result file to write.")]
Model = Annotated[
    str | None,
    typer.Option("--model", help="Model to request; default: the first one the endpoint serves."),
]
BaseUrl = Annotated[
    str,
    typer.Option("--base-url", "--gateway-url", help="Base URL for the recipient requests."),
]
MaxTokens = Annotated[
    int,
    typer.Option(
        *("--max-tokens", "--recipient-max-tokens", "--recipient-max-new-tokens"),
        "--max-new-tokens",
        min=1,
        help="Maximum tokens a measured request generates.",
    ),
]
DonorMaxTokens = Annotated[
    int,
    typer.Option(
        *("--donor-max-tokens", "--donor-max-new-tokens"), min=1, help="Tokens a donor generates."
    ),
]
TimeoutSeconds = Annotated[
    float, typer.Option("--timeout-seconds", min=0.001, help="Timeout per request, in seconds.")
]
Tenant = Annotated[str, typer.Option("--tenant", help="Value of x-tenant-id in every request.")]
ApiKey = Annotated[
    str,
    typer.Option(
        "--api-key", envvar="SEMBENCH_API_KEY", help="Bearer token; never stored in a result."
    ),
]
RunId = Annotated[
    str | None, typer.Option("--run-id", help="Identifier of the run; default: a new one.")
]
ArmOption = Annotated[
    Arm, typer.Option("--arm", help="cold: no donors. warm, single: donors first.")
]
BackendId = Annotated[str | None, typer.Option("--backend-id", help="Name of this backend.")]
BaselineId = Annotated[
    str | None, typer.Option("--baseline-id", help="Name of the baseline it is compared with.")
]
EngineVersion = Annotated[str | None, typer.Option("--engine-version", help="Engine version.")]
SkipVerify = Annotated[
    bool, typer.Option("--skip-verify", help="Do not check the endpoint before the run.")
]
ServeCommand = Annotated[
    str, typer.Option("--engine-serve-command", help="The command the engine was started with.")
]
ServeCommandFile = Annotated[
    Path | None, typer.Option("--engine-serve-command-file", help="File with that command.")
]
EngineEnv = Annotated[
    list[str] | None,
    typer.Option("--engine-env", help="NAME=VALUE set for the engine; repeatable."),
]
MetricsUrl = Annotated[
    list[str] | None,
    typer.Option("--metrics-url", help="Prometheus metrics URL of an engine; repeatable."),
]
RequireFlags = Annotated[
    bool,
    typer.Option(
        "--require-phase0-flags", help="Exit 3 if the engine's flags would spoil a comparison."
    ),
]
QualityThreshold = Annotated[
    float, typer.Option("--quality-threshold", min=0, max=1, help="Minimum answer recall to pass.")
]
PostDonorDelay = Annotated[
    float,
    typer.Option(
        "--post-donor-delay-ms",
        min=0,
        help="Extra pause between donors and recipient, on top of waiting for the donors.",
    ),
]
DonorWait = Annotated[
    float,
    typer.Option(
        "--donor-wait-ms",
        min=0,
        help=(
            "Wait at most this long for the engine's counters to show the donors as registered. "
            "There is no wait if the engine has no such counters."
        ),
    ),
]
Cooldown = Annotated[float, typer.Option("--cooldown-ms", min=0, help="Pause after each request.")]
Warmup = Annotated[
    int, typer.Option("--warmup-requests", min=0, help="Unmeasured requests to send first.")
]
Paired = Annotated[
    bool, typer.Option("--paired", help="Serve every recipient both cold and warm, and compare.")
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Continue an interrupted run of this output file.")
]
ContaminationCheck = Annotated[
    bool,
    typer.Option(
        "--contamination-check",
        help="Repeat every recipient to see whether approximate K/V comes back as exact.",
    ),
]
CaptureLogprobs = Annotated[
    bool, typer.Option("--capture-logprobs", help="Request log probabilities, to compute KL.")
]
TopLogprobs = Annotated[
    int, typer.Option("--top-logprobs-num", min=1, max=20, help="Log probabilities per token.")
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
        help="Stop after this many failures in a row (the run can be resumed); 0 never stops.",
    ),
]
IsolateBySalt = Annotated[
    bool | None,
    typer.Option(
        "--isolate-by-salt/--no-isolate-by-salt",
        help=(
            "Give every item and arm its own cache_salt, so that items do not serve one another. "
            "Default: on if there is no --reset-url and the endpoint accepts a salt."
        ),
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFlags:
    """Flags of every run against an endpoint: what to send, under which id, to which engine."""

    manifest: Manifest
    output: Output
    model: Model = None
    max_items: MaxItems = None
    resume: Resume = False
    run_id: RunId = None
    backend_id: BackendId = None
    baseline_id: BaselineId = None
    engine_version: EngineVersion = None
    skip_verify: SkipVerify = False
    engine_serve_command: ServeCommand = ""
    engine_serve_command_file: ServeCommandFile = None
    engine_env: EngineEnv = None
    metrics_url: MetricsUrl = None
    require_phase0_flags: RequireFlags = False
    max_consecutive_errors: MaxConsecutiveErrors = 10

    def values(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def engine_flags(self) -> EngineFlags:
        """The engine flags the user reported; checked (exit 3) if the user asked for that."""
        command, file = self.engine_serve_command, self.engine_serve_command_file
        if command and file is not None:
            raise UsageError("give --engine-serve-command or --engine-serve-command-file, not both")
        if file is not None:
            try:
                command = file.read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                raise UsageError(f"--engine-serve-command-file: {error}") from error
        flags = EngineFlags(
            serve_command=command, environment=parse_environment(self.engine_env or [])
        )
        if self.require_phase0_flags:
            flags.require()
        return flags

    def run(self, engine: str, *, arm: str = Arm.SINGLE) -> RunMetadata:
        """The run's identity: the one given, the one being resumed, or a new one."""
        return run_metadata(
            engine=engine,
            manifest=self.manifest,
            run_id=self.run_id or (resumed_run_id(self.output) if self.resume else None),
            arm=arm,
            engine_version=self.engine_version,
            backend_id=self.backend_id,
            baseline_id=self.baseline_id,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayFlags(RunFlags):
    """Flags every manifest replay adds: how items are played and judged."""

    arm: ArmOption = Arm.SINGLE
    paired: Paired = False
    tokenizer: TokenizerName = None
    block_size: BlockSize = 16
    quality_threshold: QualityThreshold = PASS_THRESHOLD
    post_donor_delay_ms: PostDonorDelay = 0.0
    donor_wait_ms: DonorWait = 5000.0
    cooldown_ms: Cooldown = 0.0
    warmup_requests: Warmup = 0
    contamination_check: ContaminationCheck = False
    capture_logprobs: CaptureLogprobs = False
    top_logprobs_num: TopLogprobs = 8
    connector_audit: ConnectorAudit = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadFlags(RunFlags):
    """Flags of a load run. Under load, failures in a row are a finding, not a lost endpoint."""

    max_consecutive_errors: MaxConsecutiveErrors = 100


def recorded(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration stored in a result: the flags without their secrets."""
    shown = dict(flags)
    shown["engine_env"] = [
        f"{name}={MASK}" if SECRET_NAME.search(name := pair.partition("=")[0]) else pair
        for pair in flags.get("engine_env") or ()
    ]
    if "api_key" in shown:
        shown["api_key"] = bool(shown["api_key"])
    return run_config(shown)


def require_urls(**flags: str | Sequence[str] | None) -> None:
    """Reject values that are not HTTP URLs, naming the flag, before anything is sent."""
    for name, value in flags.items():
        for url in (value,) if isinstance(value, str) else value or ():
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                flag = "--" + name.replace("_", "-")
                raise UsageError(f"{flag}: expected http://host:port, got {url!r}")


async def model_named(given: str | None, *, engine: str, base_url: str) -> str:
    """The model given, or the first one the endpoint says it serves.

    Raises
    ------
    EndpointError
        If none was given and the endpoint cannot be asked.
    UsageError
        If the endpoint names no model.
    """
    if given:
        return given

    from sembench.live.verify import served_models

    models = await served_models(engine, base_url, timeout_seconds=15.0)
    if engine == "sglang" and not models:
        return ""  # SGLang's own protocol needs no model name
    if not models:
        raise UsageError(f"--model: {base_url} does not list its models; give one")
    return models[0]


def require_http() -> None:
    """Raise a MissingExtraError naming the extra if httpx is not installed."""
    try:
        import httpx  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(
            package="httpx", extra="benchmarks", purpose="a live run"
        ) from error
