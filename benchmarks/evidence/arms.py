"""The arms: how vLLM is started in each, and why one cannot run on a kind of machine."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from benchmarks.vllm_connector import WORKER, transfer

LOOKING = (
    "budget(edit_dependents(1, 8) + span_head(8) + query_attention(0.05, 16, 'displaced'), 0.15)"
)
"""The certified policy of the reference model without its table of depths, for other models."""


class Machine(StrEnum):
    """What the engines compute on."""

    CPU = "cpu"
    GPU = "gpu"


class Caching(StrEnum):
    """Where an arm keeps K/V between requests."""

    NONE = "none"
    PREFIX = "prefix"
    OFFLOADING = "offloading"
    LMCACHE = "lmcache"
    OURS = "ours"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One configuration of vLLM."""

    name: str
    title: str
    caching: Caching
    reorder: bool = False
    """Whether documents are put into canonical order before the engine sees them."""
    policy: str = ""
    """Recompute policy of a control; empty: the certified one."""
    control: bool = False
    """Whether the arm exists to be compared with ours only."""
    cannot: str = ""
    """Why it runs nowhere; empty if it runs."""


ARMS: tuple[Arm, ...] = (
    Arm(name="no_cache", title="vLLM, no cache", caching=Caching.NONE),
    Arm(name="prefix_cache", title="vLLM, prefix cache", caching=Caching.PREFIX),
    Arm(name="semblend", title="SemBlend, certified policy", caching=Caching.OURS),
    Arm(
        name="reordered",
        title="documents reordered, prefix cache",
        caching=Caching.PREFIX,
        reorder=True,
    ),
    Arm(name="offloading", title="vLLM, host offloading", caching=Caching.OFFLOADING),
    Arm(name="lmcache", title="LMCache 0.5.6", caching=Caching.LMCACHE),
    Arm(
        name="first_k",
        title="SemBlend, first 32 tokens of a span",
        caching=Caching.OURS,
        policy="span_head(32)",
        control=True,
    ),
    Arm(
        name="random",
        title="SemBlend, 15 % at random",
        caching=Caching.OURS,
        policy="random(0.15)",
        control=True,
    ),
    Arm(
        name="full_reuse",
        title="SemBlend, nothing recomputed",
        caching=Caching.OURS,
        policy="none",
        control=True,
    ),
    Arm(
        name="deviation",
        title="SemBlend, the 15 % that deviate most",
        caching=Caching.OURS,
        policy="kv_deviation(0.15)",
        control=True,
        cannot="the policy compares with cold K/V, which a serving engine does not have; the "
        "vLLM adapter declines it as `unsupported`",
    ),
)
BY_NAME = {arm.name: arm for arm in ARMS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes that every arm gets alike."""

    cache: int
    """The engine's own K/V cache."""
    host: int
    """Beside it, for arms that keep K/V in host memory."""


def engine_options(
    arm: Arm, machine: Machine, memory: Memory, *, certified: bool
) -> dict[str, Any]:
    """Keyword arguments of `vllm.LLM` that differ between arms."""
    options: dict[str, Any] = {
        "enable_prefix_caching": arm.caching is not Caching.NONE,
        "kv_cache_memory_bytes": memory.cache,
    }
    if machine is Machine.CPU:
        options["block_size"] = 32  # vLLM's own 128 would cost the prefix cache most of its hits
    if arm.caching is Caching.OFFLOADING:
        extra: dict[str, Any] = {"cpu_bytes_to_use": memory.host}
        if machine is Machine.CPU:
            extra |= {
                "spec_name": "PlainOffloading",
                "spec_module_path": "tests.integration.vllm.plain_offloading",
            }
        options["kv_transfer_config"] = {
            "kv_connector": "OffloadingConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": extra,
        }
    elif arm.caching is Caching.LMCACHE:
        options["kv_transfer_config"] = {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}
    elif arm.caching is Caching.OURS:
        options["worker_cls"] = WORKER
        options["kv_transfer_config"] = transfer(_ours(arm, memory, certified=certified))
    return options


def _ours(arm: Arm, memory: Memory, *, certified: bool) -> dict[str, Any]:
    shared: dict[str, Any] = {"min_prompt_tokens": 64, "host_donor_bytes": memory.host}
    if certified and not arm.policy:
        return {"mode": "segmented", **shared}
    policy = arm.policy or LOOKING
    return {"mode": "segmented_experimental", "recompute_policy": policy, **shared}


def why_not(arm: Arm, machine: Machine) -> str:
    """Why an arm does not run on this kind of machine; empty if it does."""
    if arm.caching is Caching.LMCACHE and machine is Machine.CPU:
        return (
            "tried with vLLM for CPUs: LMCache 0.5.6 installs and starts, says `No supported cpu "
            "connector found`, and from then on caches nothing"
        )
    return arm.cannot


def missing(arm: Arm) -> str:
    """Why an arm cannot start in this environment; empty if it can be tried."""
    if arm.caching is Caching.LMCACHE and importlib.util.find_spec("lmcache") is None:
        return "lmcache is not installed beside vLLM (--lmcache names a folder that holds it)"
    return ""


def note(arm: Arm, machine: Machine, *, certified: bool) -> str:
    """What a reader must know about an arm on this machine; empty if nothing."""
    if arm.caching is Caching.OFFLOADING and machine is Machine.CPU:
        return (
            "vLLM's own copies to the host need a GPU; here its scheduler and manager run with a "
            "worker that copies at once (`tests/integration/vllm/plain_offloading.py`)"
        )
    if arm.caching is Caching.OURS and not certified and not arm.policy:
        return f"no certificate for this model: `segmented_experimental` with `{LOOKING}`"
    if arm.reorder:
        return (
            "exact for the prompt it sends, which is not the prompt it got: its answers are those "
            "of another order; canonical order is by popularity, the best case for a prefix cache"
        )
    return ""
