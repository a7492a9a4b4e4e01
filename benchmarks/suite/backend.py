"""What an endpoint and this machine report about themselves, so that figures include it.

An endpoint need not report anything: missing values are "not stated", unless `--backend`,
`--cache-configuration` and `--hardware` give them.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from sembench.live.prometheus import parse

_GIB = 1 << 30
_VLLM_CACHE = ("enable_prefix_caching", "block_size", "cache_dtype", "gpu_memory_utilization")
_SGLANG_CACHE = ("disable_radix_cache", "page_size", "kv_cache_dtype", "mem_fraction_static")


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """Name with version, and cache configuration; None if not reported."""

    name: str | None = None
    caches: str | None = None


async def describe(
    base_url: str,
    *,
    timeout_seconds: float = 10.0,
    transport: httpx.AsyncBaseTransport | None = None,
) -> Backend:
    """Query the endpoint as each known engine expects; `transport` is httpx's."""
    root = base_url.rstrip("/").removesuffix("/v1")
    async with httpx.AsyncClient(
        timeout=timeout_seconds, trust_env=False, transport=transport
    ) as http:
        for ask in (_semblend, _sglang, _vllm):
            try:
                found = await ask(http, root)
            except (httpx.HTTPError, ValueError, KeyError, TypeError, AttributeError):
                continue
            if found is not None:
                return found
    return Backend()


async def _semblend(http: httpx.AsyncClient, root: str) -> Backend | None:
    state = await _json(http, f"{root}/semblend/state")
    if state is None:
        return None
    store = state["store"]
    tiers = [f"{tier['name']} tier {tier['capacity'] / _GIB:.3g} GiB" for tier in store["tiers"]]
    caches = [*tiers, f"index {store['index']['capacity'] / _GIB:.3g} GiB"]
    caches.append(f"exact prefix cache in a pool of {store['pool']['pages']} pages")
    return Backend(name=f"semblend serve {state['server']['version']}", caches=", ".join(caches))


async def _sglang(http: httpx.AsyncClient, root: str) -> Backend | None:
    info = await _json(http, f"{root}/get_server_info")
    if info is None or "disable_radix_cache" not in info:
        return None
    caches = ", ".join(f"{name} {info[name]}" for name in _SGLANG_CACHE if name in info)
    return Backend(name=f"SGLang {info.get('version', '')}".strip(), caches=caches)


async def _vllm(http: httpx.AsyncClient, root: str) -> Backend | None:
    version = await _json(http, f"{root}/version")
    if version is None or "version" not in version:
        return None
    page = await http.get(f"{root}/metrics")
    labels: dict[str, str] = {}
    for sample in parse(page.text) if page.status_code == 200 else ():
        if sample.name == "vllm:cache_config_info":
            labels = dict(sample.labels)
    caches = ", ".join(f"{name} {labels[name]}" for name in _VLLM_CACHE if name in labels)
    return Backend(name=f"vLLM {version['version']}", caches=caches or None)


async def _json(http: httpx.AsyncClient, url: str) -> dict[str, Any] | None:
    response = await http.get(url)
    if response.status_code != 200:
        return None
    body = response.json()
    return body if isinstance(body, dict) else None


def this_machine() -> str:
    """Processor, cores, memory and GPUs of this machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _GIB
    parts = [_processor(), f"{os.cpu_count()} cores", f"{memory:.0f} GiB"]
    return ", ".join([*parts, *_graphics()])


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        text = ""
    names = [line.partition(":")[2] for line in text.splitlines() if line.startswith("model name")]
    return (names[0].strip() if names else "") or platform.processor() or platform.machine()


def _graphics() -> list[str]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    done = subprocess.run(
        [program, "--query-gpu=name", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]
