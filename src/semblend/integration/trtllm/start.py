"""How far the connector goes in the TensorRT-LLM it finds itself in."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from semblend.integration.idle import idle_class
from semblend.integration.refusals import Refusal
from semblend.integration.running_mode import RunningMode
from semblend.integration.starting import Start, start_of
from semblend.integration.trtllm import namespaces, upstream
from semblend.integration.trtllm.contract import contract_problems
from semblend.integration.trtllm.engine_facts import EngineFacts
from semblend.integration.trtllm.options import ConnectorOptions
from semblend.integration.trtllm.support import engine_refusals

logger = logging.getLogger("semblend.trtllm")


def trtllm_start(llm_args: Any) -> Start:
    """Ask TensorRT-LLM, if it is here.

    Raises
    ------
    SettingsError
        If an option or a setting is wrong.
    UnsupportedEngineError
        With SEMBLEND_STRICT_START, naming everything that stands in the way.
    """
    options = ConnectorOptions.from_env()
    settings = options.settings()

    def loading() -> Iterable[Refusal]:
        facts = EngineFacts.of(llm_args)
        yield from engine_refusals(llm_args, facts, options)
        if unknown := namespaces.engine_namespace(facts, options, settings).unknown_parts:
            yield Refusal(feature=f"unknown parts of the namespace: {', '.join(unknown)}")

    def discovery() -> Iterable[str]:
        module = upstream.connector_module()
        return () if module is None else contract_problems(module)

    return start_of(options, settings, loading=loading, discovery=discovery)


def idle_scheduler(base: type, start: Start) -> Any:
    """A scheduler's half that offers nothing and holds nothing, and says why."""
    RunningMode.nothing(ConnectorOptions.from_env().mode, str(start.objection)).say(logger)
    answers = {
        "get_num_new_matched_tokens": lambda: (0, False),
        "build_connector_meta": lambda: None,
        "request_finished": lambda: False,
        "request_finished_by_layer_group": lambda: False,
    }
    return idle_class("IdleScheduler", (base,), answers)


def idle_worker(base: type) -> Any:
    """A worker's half that has nothing to wait for."""
    return idle_class("IdleWorker", (base,), {"get_finished": lambda: ([], [])})
