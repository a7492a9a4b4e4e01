"""Turns engine logs and audit files into an :class:`EngineSummary`. One parser per file."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from sembench.engine_events.connector_audit import ConnectorAuditParser
from sembench.engine_events.lmcache import LmcacheParser
from sembench.engine_events.sglang import SglangParser
from sembench.engine_events.summary import EngineSummary
from sembench.engine_events.trtllm import TrtllmParser
from sembench.engine_events.vllm import VllmParser
from sembench.errors import UsageError


class LineParser(Protocol):
    """Reads a log line by line; call `finish` once, after the last line."""

    def feed(self, line: str) -> None: ...

    def finish(self) -> EngineSummary:
        """The summary of all lines fed."""
        ...


PARSERS: dict[str, Callable[[], LineParser]] = {
    "vllm": VllmParser,
    "sglang": SglangParser,
    "trtllm": TrtllmParser,
    "lmcache": LmcacheParser,
    "connector": ConnectorAuditParser,
}


def summarise(engine: str, lines: Iterable[str]) -> EngineSummary:
    """Summarize one engine's log or audit file."""
    if engine not in PARSERS:
        raise UsageError(f"--engine: expected one of {', '.join(PARSERS)}, got {engine!r}")
    parser = PARSERS[engine]()
    for line in lines:
        parser.feed(line)
    return parser.finish()


__all__ = ["PARSERS", "EngineSummary", "LineParser", "summarise"]
