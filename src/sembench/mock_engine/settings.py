"""How a mock engine behaves: one frozen value, set at the start."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from sembench.clock import Clock, MachineClock
from sembench.errors import UsageError


class Cheat(StrEnum):
    """A way for an engine to look better than it is."""

    NONE = "none"
    CLAIM_REUSE = "claim-reuse"
    """Computes every prompt cold but reports the spans it found as materialized."""
    LEAK_DONOR_FACTS = "leak-donor-facts"
    """Reuses past edits without recomputing, so answers state the donor's facts."""
    POISON_EXACT_CACHE = "poison-exact-cache"
    """Publishes approximate K/V as exact, so a repeat is an "exact hit" with a wrong answer."""
    FAST_NEGATIVES = "fast-negatives"
    """Silently skips prefill whenever any donor exists, related or not."""
    MISSING_METRICS = "missing-metrics"
    """Reports nothing that could be checked: no usage, metadata or metrics."""


class MockFault(StrEnum):
    """What goes wrong with every n-th completion."""

    NONE = "none"
    ERROR = "error"
    """HTTP 500 before anything is sent."""
    STALL = "stall"
    """Headers, then silence until the client gives up."""
    DISCONNECT = "disconnect"
    """The connection closes after the first content token."""
    GARBAGE = "garbage"
    """A stream event that is not JSON."""


class LogFormat(StrEnum):
    """Which engine's log format to write."""

    VLLM = "vllm"
    SGLANG = "sglang"
    TRTLLM = "trtllm"
    LMCACHE = "lmcache"


@dataclass(frozen=True, slots=True, kw_only=True)
class MockSettings:
    """All settings; the simulated compute times are really slept."""

    model: str = "mock-model"
    block_size: int = 16
    prefix_cache: bool = True
    prefix_cache_blocks: int = 65_536
    semantic: bool = True
    discovery_only: bool = False
    """Find and report spans, but load nothing."""
    min_span_tokens: int = 16
    max_donors: int = 4096
    router: bool = False
    """Send a route header, as a semantic gateway in front of engines does."""
    prefill_ms_per_token: float = 0.0
    decode_ms_per_token: float = 0.0
    lookup_ms: float = 0.0
    cheat: Cheat = Cheat.NONE
    fault: MockFault = MockFault.NONE
    fault_every: int = 0
    """Every n-th completion has the fault; 0 means never."""
    stall_seconds: float = 30.0
    log_path: Path | None = None
    log_format: LogFormat = LogFormat.VLLM
    audit_path: Path | None = None
    clock: Clock = field(default_factory=MachineClock)
    """The clock that simulated compute sleeps on; tests use a virtual one."""

    def __post_init__(self) -> None:
        for name in ("block_size", "min_span_tokens", "max_donors", "prefix_cache_blocks"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name}: expected at least 1, got {getattr(self, name)}")
        for name in (
            "prefill_ms_per_token",
            "decode_ms_per_token",
            "lookup_ms",
            "fault_every",
            "stall_seconds",
        ):
            if getattr(self, name) < 0:
                raise UsageError(f"{name}: expected 0 or more, got {getattr(self, name)}")
        if self.fault is not MockFault.NONE and self.fault_every == 0:
            raise UsageError("fault_every: a fault needs a value of at least 1 (every request)")
