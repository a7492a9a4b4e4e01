"""Other connectors in a `MultiConnector` with ours: which may stand there, and why others may not.

Whatever a neighbour stores of a request with a load may be approximate. It may stand beside us only
if nobody can ever find that as exact.
"""

from __future__ import annotations

from typing import Any

from semblend.integration.refusals import Refusal

PROVEN = ("SemBlendOffloadingConnector",)
"""Classes whose stores were looked into (`test_neighbours.py`)."""

_BY_TOKENS = "it names K/V by token ids, and would store approximate K/V as exact"
_EARLY = (
    "it copies block hashes before approximate blocks get private ones, and would store them as "
    "exact; use SemBlendOffloadingConnector from semblend.integration.vllm.offloading"
)
_ELSEWHERE = (
    "the machine that decodes caches what it receives under the prompt's own hashes, and would "
    "hand approximate K/V out as exact"
)
_WHY = {
    "LMCacheConnectorV1": _BY_TOKENS,
    "LMCacheMPConnector": _BY_TOKENS,
    "ExampleConnector": _BY_TOKENS,
    "OffloadingConnector": _EARLY,
    "NixlConnector": _ELSEWHERE,
    "NixlPullConnector": _ELSEWHERE,
    "NixlPushConnector": _ELSEWHERE,
    "MooncakeConnector": _ELSEWHERE,
    "MoRIIOConnector": _ELSEWHERE,
}
_UNKNOWN = "what it stores, and under which names, was not proven"
_INSTEAD = "make SemBlend the only connector, or use mode discovery_only"


def neighbour_refusals(group: Any, own: Any) -> list[Refusal]:
    """Everything against `own`'s loading as a child of a MultiConnector."""
    names = [type(one).__name__ for one in children(group) if one is not own]
    refusals = [
        Refusal(
            feature=f"MultiConnector with {name}", remedy=f"{_WHY.get(name, _UNKNOWN)}; {_INSTEAD}"
        )
        for name in dict.fromkeys(names)
        if name not in PROVEN
    ]
    policy = group._vllm_config.kv_transfer_config.kv_load_failure_policy
    if policy != "recompute":
        refusals.append(
            Refusal(
                feature=f"MultiConnector with kv_load_failure_policy={policy!r}",
                remedy="set it to recompute there too: vLLM asks the outer one",
            )
        )
    return refusals


def children(group: Any) -> list[Any]:
    """The connectors of a MultiConnector; of any other, itself."""
    return list(getattr(group, "_connectors", None) or [group])
