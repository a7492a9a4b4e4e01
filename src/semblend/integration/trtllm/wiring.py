"""How the scheduler and the worker of one engine find one another.

TensorRT-LLM makes both in the leader's process, at the same time and with the same
arguments object, and passes nothing between them but metadata in one direction.
"""

from __future__ import annotations

import threading
from typing import Any

from semblend.integration.scheduler.worker_link import WorkerLink

_LOCK = threading.Lock()
_LINKS: dict[int, tuple[Any, WorkerLink]] = {}


def link_of(llm_args: Any) -> WorkerLink:
    """The link between the two halves that were made with this very object."""
    with _LOCK:
        held = _LINKS.get(id(llm_args))
        if held is None or held[0] is not llm_args:
            held = _LINKS[id(llm_args)] = (llm_args, WorkerLink())
        return held[1]


def unlink(llm_args: Any) -> None:
    """An engine is gone."""
    with _LOCK:
        held = _LINKS.get(id(llm_args))
        if held is not None and held[0] is llm_args:
            del _LINKS[id(llm_args)]
