"""All settings of the server, in one frozen value."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from semblend.core.errors import SettingsError
from semblend.core.flags import Flag

_LIMITS = "Limits"
_TENANCY = "Tenancy and security"

LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")

_SPARE_BODIES = 16
"""Bodies held beyond those running or waiting. With the size limit this bounds the memory
that callers can occupy."""


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    return host in LOOPBACK_HOSTS or host.startswith("127.")


def accepted_hosts(host: str, allowed: tuple[str, ...] | None) -> frozenset[str] | None:
    """Host names a request to `host` may be addressed to; None accepts any."""
    if allowed is not None:
        return frozenset(name.lower() for name in allowed)
    return frozenset((*LOOPBACK_HOSTS, host.lower())) if is_loopback(host) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """Limits, tenancy and addresses of one server."""

    model_name: str
    """The name clients put in `model`."""
    host: Annotated[str, Flag(help="Address to listen on; 0.0.0.0 lets other machines in.")] = (
        "127.0.0.1"
    )
    """Address to listen on. By default other machines cannot reach the server."""
    port: Annotated[int, Flag(help="Port to listen on.")] = 8000
    allowed_hosts: Annotated[
        tuple[str, ...] | None,
        Flag(help="A name accepted in the Host header.", name="allow_host", panel=_TENANCY),
    ] = None
    """Names accepted in the Host header. None: only loopback names if bound to loopback,
    which stops web pages from reaching the server by DNS rebinding; otherwise any name."""

    key_file: Annotated[
        Path | None, Flag(help="JSON file of API keys and their tenants.", panel=_TENANCY)
    ] = None
    """JSON file of API keys; without one, no key is required."""
    trust_tenant_header: Annotated[
        bool,
        Flag(
            help="Take the tenant from x-tenant-id (with keys: from admin keys only).",
            panel=_TENANCY,
        ),
    ] = False
    """Take the tenant from x-tenant-id. With API keys, only from an admin key (a gateway)."""
    public_metrics: Annotated[
        bool, Flag(help="Serve /metrics without an admin key.", panel=_TENANCY)
    ] = False
    """Serve /metrics without an admin key even if API keys are configured."""
    allow_policy_override: Annotated[
        bool, Flag(help="Let requests choose their recompute policy.", panel=_TENANCY)
    ] = False
    """Let a request choose its recompute policy."""
    secret: str = field(default="", repr=False)
    """Key of the hashes that replace tenant and donor names in logs and responses. Set it to
    keep them stable across restarts; empty picks a random one."""

    max_body_bytes: Annotated[int, Flag(help="Maximum body size in bytes.", panel=_LIMITS)] = (
        8 * 2**20
    )
    body_timeout_s: float = 30.0
    """How long a client may take to send its body."""
    max_prompt_tokens: Annotated[
        int | None, Flag(help="Maximum prompt length in tokens.", panel=_LIMITS)
    ] = None
    """Maximum prompt length; None leaves it to the engine."""
    max_output_tokens: Annotated[
        int, Flag(help="Maximum tokens a request may generate.", panel=_LIMITS)
    ] = 4096
    default_max_tokens: int = 256
    """Tokens generated if a chat request sets no limit."""
    default_temperature: float = 1.0
    """Temperature of requests that set none."""
    max_concurrent: Annotated[
        int, Flag(help="Maximum requests running in the engine.", panel=_LIMITS)
    ] = 16
    """Maximum requests running in the engine."""
    max_queued: Annotated[int, Flag(help="Maximum requests in the queue.", panel=_LIMITS)] = 64
    """Maximum requests waiting for a slot; more are refused at once."""
    max_concurrent_per_tenant: Annotated[
        int, Flag(help="Maximum concurrent requests per tenant; 0: no limit.", panel=_LIMITS)
    ] = 0
    """Maximum requests per tenant, running and waiting; 0 sets no per-tenant limit."""
    requests_per_minute: Annotated[
        int, Flag(help="Maximum requests per tenant and minute; 0: no limit.", panel=_LIMITS)
    ] = 0
    """Maximum requests per tenant and minute; 0 sets no limit."""
    queue_timeout_s: Annotated[
        float, Flag(help="Seconds a request may wait.", name="queue_timeout", panel=_LIMITS)
    ] = 30.0
    request_timeout_s: Annotated[
        float, Flag(help="Seconds a request may take.", name="request_timeout", panel=_LIMITS)
    ] = 300.0
    """From admission to the last byte."""
    drain_timeout_s: Annotated[
        float,
        Flag(
            help="Seconds that running requests have to finish after a stop signal.",
            name="drain_timeout",
            panel=_LIMITS,
        ),
    ] = 20.0
    """How long running requests may take to finish on shutdown before they are cancelled."""
    recent_requests: int = 200
    """How many finished requests the page remembers."""
    audit_path: Annotated[
        Path | None, Flag(help="Append one JSON line per request here, for `semblend report`.")
    ] = None
    """File to append one JSON line per request to; `semblend report` reads it."""
    audit_max_bytes: int = 256 * 2**20
    """Size at which the file is rotated to FILE.1; 0 never rotates."""
    audit_files: int = 5
    """Maximum audit files, including the current one."""

    def __post_init__(self) -> None:
        if not self.model_name:
            raise SettingsError("model_name: expected a non-empty name")
        if not 0 <= self.port <= 65535:
            raise SettingsError(f"port: expected 0 to 65535, got {self.port}")
        for name in (
            "max_body_bytes",
            "body_timeout_s",
            "max_output_tokens",
            "default_max_tokens",
            "max_concurrent",
            "queue_timeout_s",
            "request_timeout_s",
            "recent_requests",
            "audit_files",
        ):
            if not getattr(self, name) > 0:
                raise SettingsError(f"{name}: expected a value above 0, got {getattr(self, name)}")
        for name in (
            "max_queued",
            "max_concurrent_per_tenant",
            "requests_per_minute",
            "drain_timeout_s",
            "audit_max_bytes",
        ):
            if not getattr(self, name) >= 0:
                raise SettingsError(f"{name}: expected 0 or more, got {getattr(self, name)}")
        if self.max_prompt_tokens is not None and self.max_prompt_tokens < 1:
            raise SettingsError(
                f"max_prompt_tokens: expected 1 or more, got {self.max_prompt_tokens}"
            )
        if not 0.0 <= self.default_temperature <= 2.0:
            raise SettingsError(
                f"default_temperature: expected 0 to 2, got {self.default_temperature}"
            )

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        return is_loopback(self.host)

    @property
    def accepted_hosts(self) -> frozenset[str] | None:
        """Host names a request may be addressed to; None accepts any."""
        return accepted_hosts(self.host, self.allowed_hosts)

    @property
    def max_bodies(self) -> int:
        """Maximum number of bodies held at a time."""
        return self.max_concurrent + self.max_queued + _SPARE_BODIES
