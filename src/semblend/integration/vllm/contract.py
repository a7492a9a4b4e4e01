"""What the connector relies on in vLLM's interface, asked of the one that is installed.

Asked, not listed: discovery runs in a version nobody has seen if its connectors are called as ours
answers, and if requests and steps have what it reads.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from semblend.integration.asked_interfaces import lacking

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
_GATHERING = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def contract_problems(connector: type, bases: Iterable[type]) -> list[str]:
    """Everything under which the connector could not even discover; empty when nothing is."""
    problems: list[str] = []
    bases = list(bases)
    known = {name for base in bases for name in dir(base)}
    problems += [f"vLLM's connectors have no {name}" for name in _ASKED_FOR if name not in known]
    for base in bases:
        problems += _method_problems(connector, base)
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

    return [
        *problems,
        *lacking(Request, _REQUEST, of_instances=True),
        *lacking(SchedulerOutput, _STEP),
    ]


def _method_problems(connector: type, base: type) -> list[str]:
    problems = [
        f"{base.__name__}.{name} must be implemented and is not known"
        for name in sorted(getattr(base, "__abstractmethods__", ()))
        if getattr(connector, name, None) is getattr(base, name)
    ]
    for name in sorted(set(vars(connector)) & set(dir(base))):
        ours, theirs = getattr(connector, name), getattr(base, name)
        if name.startswith("_") or not (inspect.isroutine(ours) and inspect.isroutine(theirs)):
            continue
        if not _answers(ours, theirs):
            problems.append(f"{base.__name__}.{name}{inspect.signature(theirs)}")
    return problems


def _answers(ours: Callable[..., Any], theirs: Callable[..., Any]) -> bool:
    """Whether our method can be called with what theirs is called with."""
    mine, given = inspect.signature(ours).parameters, inspect.signature(theirs).parameters
    plain = [name for name, parameter in given.items() if parameter.kind not in _GATHERING]
    gathers = any(parameter.kind in _GATHERING for parameter in mine.values())
    if not gathers and [name for name in mine if name in given] != plain:
        return False
    return all(
        name in given
        for name, parameter in mine.items()
        if parameter.kind not in _GATHERING and parameter.default is parameter.empty
    )
