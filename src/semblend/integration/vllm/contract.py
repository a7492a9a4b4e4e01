"""What the connector relies on in vLLM's interface, asked of the one that is installed.

Asked, not listed: discovery runs in a version nobody has seen if its connectors are called as ours
answers, and if requests and steps have what it reads.
"""

from __future__ import annotations

from collections.abc import Iterable

from semblend.integration.asked_interfaces import lacking, unanswered

_ASKED_FOR = (
    "get_num_new_matched_tokens",
    "update_state_after_alloc",
    "build_connector_meta",
    "request_finished",
)
_REQUEST = (
    "request_id",
    "prompt_token_ids",
    "cache_salt",
    "kv_transfer_params",
    "sampling_params",
    "pooling_params",
    "lora_request",
    "mm_features",
    "prompt_embeds",
    "skip_reading_prefix_cache",
)
_STEP = (
    "total_num_scheduled_tokens",
    "num_scheduled_tokens",
    "scheduled_new_reqs",
    "scheduled_cached_reqs",
    "preempted_req_ids",
)


def contract_problems(connector: type, bases: Iterable[type]) -> list[str]:
    """Everything under which the connector could not even discover; empty when nothing is."""
    problems: list[str] = []
    bases = list(bases)
    known = {name for base in bases for name in dir(base)}
    problems += [f"vLLM's connectors have no {name}" for name in _ASKED_FOR if name not in known]
    for base in bases:
        problems += unanswered(connector, base)
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

    return [
        *problems,
        *lacking(Request, _REQUEST, of_instances=True),
        *lacking(SchedulerOutput, _STEP),
    ]
