"""Options of the embedded engine that are not SemBlend settings. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from semblend.core.chain import MEASURED_TURNS
from semblend.core.errors import SettingsError
from semblend.core.flags import Flag

_ENGINE = "Engine"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Sizes and limits of one embedded engine."""

    device: Annotated[str, Flag(help="cpu, cuda or auto.", panel=_ENGINE)] = "auto"
    """"cpu", "cuda" or "auto", which uses a CUDA device if there is one."""
    dtype: Annotated[str, Flag(help="float32, bfloat16, float16 or auto.", panel=_ENGINE)] = "auto"
    """"float32", "bfloat16", "float16" or "auto": float32 on a CPU, bfloat16 on a GPU."""
    page_size: int = 16
    """Tokens per page of the K/V pool, which is also the granularity of exact prefix reuse."""
    pool_bytes: Annotated[
        int, Flag(help="Size of the K/V pool in MiB.", name="pool_mib", unit=2**20, panel=_ENGINE)
    ] = 1 << 30
    """Byte limit of the K/V pool: running requests and the exact prefix cache."""
    device_donor_bytes: Annotated[
        int,
        Flag(
            help="MiB of donor K/V on the device, besides the pool; 0 for none.",
            name="donor_device_mib",
            unit=2**20,
            panel=_ENGINE,
        ),
    ] = 0
    """Byte limit of donor K/V on the pool's device, in addition to the pool; 0 keeps none."""
    host_donor_bytes: Annotated[
        int,
        Flag(help="MiB of donor K/V in host memory.", name="donor_mib", unit=2**20, panel=_ENGINE),
    ] = 1 << 30
    """Byte limit of donor K/V in host memory. On a CPU, up to half of it is touched in advance
    while no request runs.
    """
    disk_donor_bytes: Annotated[
        int,
        Flag(
            help="MiB of donor K/V on disk; 0 for none.",
            name="donor_disk_mib",
            unit=2**20,
            panel=_ENGINE,
        ),
    ] = 0
    """Byte limit of donor K/V on disk; 0 keeps none."""
    donor_folder: Annotated[
        Path | None, Flag(help="Folder for donor K/V on disk.", panel=_ENGINE)
    ] = None
    """Folder for donor K/V on disk. Required if `disk_donor_bytes` is not 0."""
    max_running: int = 16
    """Requests computed concurrently."""
    max_waiting: int = 1024
    """Requests that may queue. More are refused on submission."""
    step_tokens: Annotated[
        int,
        Flag(
            help="Prompt tokens per pass; on a GPU, 8192 keeps long prompts fast.",
            panel=_ENGINE,
        ),
    ] = 2048
    """Prompt tokens per pass. Limits the pause between two tokens of requests that are decoding
    meanwhile. Splitting a prefill into passes has no measurable cost.
    """
    capture_queue: int = 8
    """Finished prefills that may wait to be stored as donors. More are not stored."""
    prefix_cache: bool = True
    """Whether to keep exactly computed pages for exact prefix reuse."""
    chain_share: Annotated[
        float,
        Flag(
            help="Share of the K/V pool for conversations over approximate K/V; 0 keeps none.",
            panel=_ENGINE,
        ),
    ] = 0.25
    """Share of the K/V pool for approximate K/V of conversations, for requests that continue them;
    0 keeps none.
    """
    chain_turns: Annotated[
        int,
        Flag(
            help="Requests of one conversation that may continue over approximate K/V.",
            panel=_ENGINE,
        ),
    ] = MEASURED_TURNS
    """Requests of one conversation that may continue over approximate K/V. A certificate may set a
    lower limit.
    """
    promotion_tokens: Annotated[
        int,
        Flag(
            help="Tokens of such conversations computed exactly per idle step; 0 computes none.",
            panel=_ENGINE,
        ),
    ] = 128
    """Tokens of such conversations computed exactly per idle step; 0 computes none."""

    def __post_init__(self) -> None:
        for name in (
            "page_size",
            "pool_bytes",
            "max_running",
            "max_waiting",
            "step_tokens",
            "capture_queue",
            "chain_turns",
        ):
            if getattr(self, name) < 1:
                raise SettingsError(f"{name}: expected at least 1, got {getattr(self, name)}")
        for name in (
            "device_donor_bytes",
            "host_donor_bytes",
            "disk_donor_bytes",
            "promotion_tokens",
        ):
            if getattr(self, name) < 0:
                raise SettingsError(f"{name}: expected 0 or more, got {getattr(self, name)}")
        if not 0.0 <= self.chain_share <= 1.0:
            raise SettingsError(f"chain_share: expected 0 to 1, got {self.chain_share}")
        if self.disk_donor_bytes and self.donor_folder is None:
            raise SettingsError("disk_donor_bytes: set donor_folder too")
