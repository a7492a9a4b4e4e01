"""How the embedded engine is set up: the part that is not SemBlend's settings. No torch here."""

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
    """"cpu", "cuda" or "auto": a CUDA device where there is one."""
    dtype: Annotated[str, Flag(help="float32, bfloat16, float16 or auto.", panel=_ENGINE)] = "auto"
    """"float32", "bfloat16", "float16" or "auto": float32 on a CPU, bfloat16 on a GPU."""
    page_size: int = 16
    """Tokens in a page of the K/V pool; also the grain of exact prefix reuse."""
    pool_bytes: Annotated[
        int, Flag(help="MiB of the K/V pool.", name="pool_mib", unit=2**20, panel=_ENGINE)
    ] = 1 << 30
    """Byte cap of the K/V pool: running requests and the exact prefix cache."""
    device_donor_bytes: Annotated[
        int,
        Flag(
            help="MiB of donor K/V on the device, beside the pool; 0: none.",
            name="donor_device_mib",
            unit=2**20,
            panel=_ENGINE,
        ),
    ] = 0
    """Byte cap of donor K/V beside the pool, on its device; 0 keeps none there."""
    host_donor_bytes: Annotated[
        int,
        Flag(help="MiB of donor K/V in host memory.", name="donor_mib", unit=2**20, panel=_ENGINE),
    ] = 1 << 30
    """Byte cap of donor K/V in host memory. On a CPU up to half of it is touched ahead of need,
    while no request runs."""
    disk_donor_bytes: Annotated[
        int,
        Flag(
            help="MiB of donor K/V on disk; 0: none.",
            name="donor_disk_mib",
            unit=2**20,
            panel=_ENGINE,
        ),
    ] = 0
    """Byte cap of donor K/V on disk; 0 keeps none there."""
    donor_folder: Annotated[
        Path | None, Flag(help="Where donor K/V on disk goes.", panel=_ENGINE)
    ] = None
    """Where donor K/V on disk goes; needed when `disk_donor_bytes` is not 0."""
    max_running: int = 16
    """Requests computed at the same time."""
    max_waiting: int = 1024
    """Requests that may queue; more are refused at submission."""
    step_tokens: Annotated[
        int,
        Flag(
            help="Prompt tokens computed in one pass; on a GPU 8192 keeps long prompts fast.",
            panel=_ENGINE,
        ),
    ] = 2048
    """Prompt tokens computed in one pass: bounds the pause between two tokens of the requests
    that are decoding beside it. Cutting a prefill into passes costs nothing measurable."""
    capture_queue: int = 8
    """Finished prefills that may wait to be stored as donors; more are not stored."""
    prefix_cache: bool = True
    """Whether exactly computed pages are kept for exact prefix reuse."""
    chain_share: float = 0.25
    """Share of the K/V pool that may hold approximate K/V of conversations, for whoever continues
    them; 0 keeps none."""
    chain_turns: int = MEASURED_TURNS
    """Requests of one conversation that may go on over approximate K/V; a certificate that names
    fewer is heard."""
    promotion_tokens: int = 128
    """Tokens of such conversations computed exactly in one idle step; 0 computes none."""

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
                raise SettingsError(f"{name}: at least 1 expected, got {getattr(self, name)}")
        for name in (
            "device_donor_bytes",
            "host_donor_bytes",
            "disk_donor_bytes",
            "promotion_tokens",
        ):
            if getattr(self, name) < 0:
                raise SettingsError(f"{name}: 0 or more expected, got {getattr(self, name)}")
        if not 0.0 <= self.chain_share <= 1.0:
            raise SettingsError(f"chain_share: 0 to 1 expected, got {self.chain_share}")
        if self.disk_donor_bytes and self.donor_folder is None:
            raise SettingsError("disk_donor_bytes: donor_folder says where, and is not set")
