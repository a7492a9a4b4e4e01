"""All settings of a gateway, in one frozen value."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from semblend.core.errors import SettingsError
from semblend.core.flags import Flag
from semblend.fleet.placement.expected_time import FleetCost
from semblend.fleet.residency.cache_follower import CacheFeed
from semblend.serve.options import accepted_hosts


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions:
    """Workers, limits and costs of one gateway."""

    workers: tuple[tuple[str, str], ...]
    """(worker id, base URL); the id is the worker's SEMBLEND_WORKER_ID."""
    host: Annotated[str, Flag(help="Address to listen on; 0.0.0.0 lets other machines in.")] = (
        "127.0.0.1"
    )
    port: Annotated[int, Flag(help="Port to listen on.")] = 8080
    allowed_hosts: Annotated[
        tuple[str, ...] | None, Flag(help="A name accepted in the Host header.", name="allow_host")
    ] = None
    """Names accepted in the Host header; None: the loopback names on loopback, else any."""
    key_file: Annotated[
        Path | None, Flag(help="JSON file of API keys and their tenants, shared with the workers.")
    ] = None
    """JSON file of API keys, the same as the workers'. Without one, anyone who can reach the
    gateway is trusted, and the directory answers for the tenant they name."""
    trust_tenant_header: Annotated[
        bool,
        Flag(
            help="Take the tenant from x-tenant-id, as the workers do (with keys: from admin "
            "keys only)."
        ),
    ] = False
    """Take the tenant from x-tenant-id; the workers must do the same. With API keys, only from
    an admin key."""
    public_metrics: Annotated[bool, Flag(help="Serve /metrics without an admin key.")] = False
    """Serve /metrics without an admin key even if API keys are configured."""
    max_body_bytes: int = 8 * 2**20
    body_timeout_s: float = 30.0
    max_bodies: int = 256
    """Maximum number of request bodies held at a time."""
    max_prompt_tokens: int = 1 << 20
    connect_timeout_s: float = 2.0
    read_timeout_s: float = 300.0
    health_interval_s: float = 2.0
    health_timeout_s: float = 2.0
    can_reuse: bool = True
    """Whether the workers load donor K/V; otherwise only exact prefixes decide placement."""
    can_transfer: bool = False
    """Whether the workers fetch donors from a shared store."""
    pin_header: str = ""
    """Header that passes the chosen worker's id to a router in front of the workers (Dynamo's
    frontend). All URLs may then be that router's, and requests without a choice go unpinned."""
    router: Annotated[
        str,
        Flag(
            help="The URLs point to a router that keeps session keys together: vllm-router "
            "(consistent_hash) or sglang-router (manual)."
        ),
    ] = ""
    """A router in front of the workers that keeps session keys together (vllm-router or
    sglang-router). All URLs may then be that router's. Workers must report their names."""
    feeds: tuple[CacheFeed, ...] = ()
    """Where the workers' engines publish their K/V events."""
    cost: FleetCost = field(default_factory=FleetCost)

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise SettingsError(f"port: expected 0 to 65535, got {self.port}")
        if self.router and self.pin_header:
            raise SettingsError("router: Dynamo's frontend or one with session keys, not both")
        if not self.workers:
            raise SettingsError("workers: expected at least one id=url")
        ids = [worker_id for worker_id, _ in self.workers]
        if len(set(ids)) != len(ids):
            raise SettingsError("workers: every id must be unique")
        for worker_id, url in self.workers:
            if not worker_id or not url.startswith(("http://", "https://")):
                raise SettingsError(f"workers: expected id=http://host:port, got {worker_id}={url}")
        for feed in self.feeds:
            if feed.worker_id not in ids:
                raise SettingsError(f"kv-events: {feed.worker_id!r} is not one of the workers")

    @property
    def accepted_hosts(self) -> frozenset[str] | None:
        """Host names a request may be addressed to; None accepts any."""
        return accepted_hosts(self.host, self.allowed_hosts)


def parse_worker(text: str) -> tuple[str, str]:
    """Parse a worker given as id=url.

    Raises
    ------
    SettingsError
        If the format is wrong.
    """
    worker_id, separator, url = text.partition("=")
    if not separator or not worker_id or not url:
        raise SettingsError(f"worker {text!r}: expected id=http://host:port")
    return worker_id, url.rstrip("/")


def parse_feed(text: str) -> CacheFeed:
    """Parse where a worker's K/V events come from: id=[bind:]endpoint[,replay endpoint].

    Raises
    ------
    SettingsError
        If the format is wrong.
    """
    worker_id, _, addresses = text.partition("=")
    endpoint, _, replay = addresses.partition(",")
    bind = endpoint.startswith("bind:")
    endpoint = endpoint.removeprefix("bind:")
    given = [endpoint, replay] if replay else [endpoint]
    if not worker_id or not all(each.startswith(("tcp://", "ipc://")) for each in given):
        raise SettingsError(
            f"kv-events {text!r}: expected id=tcp://host:port or "
            "id=tcp://host:port,tcp://host:replay-port (with bind: before the first if the engine "
            "connects to us)"
        )
    return CacheFeed(worker_id=worker_id, endpoint=endpoint, replay_endpoint=replay, bind=bind)
