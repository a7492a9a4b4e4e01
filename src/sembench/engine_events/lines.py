"""What all text logs share: `key=value` fields, error lines and runtime warnings."""

from __future__ import annotations

import re

from sembench.engine_events.summary import SummaryBuilder

_FIELD = re.compile(r"\b([A-Za-z_]\w*)=(\"[^\"]*\"|'[^']*'|\[[^)\]]*[)\]]|[^\s,;]+)")
_ERROR = re.compile(r"\b(?:ERROR|CRITICAL|FATAL)\b|Traceback \(most recent call last\)")
_RUNTIME = re.compile(r"onnxruntime", re.IGNORECASE)


def fields(text: str) -> dict[str, str]:
    """The `key=value` pairs of a line, quotes removed. For a repeated key the first value wins."""
    found: dict[str, str] = {}
    for key, value in _FIELD.findall(text):
        found.setdefault(key, value.strip("\"'"))
    return found


def count(value: str | None) -> int | None:
    """A non-negative count written in digits; None for anything else."""
    return int(value) if value is not None and value.isascii() and value.isdigit() else None


def note_trouble(line: str, into: SummaryBuilder) -> bool:
    """Record an error or runtime warning; return whether the line was one.

    onnxruntime logs its own notices at error level on machines without a GPU. They count
    as runtime warnings, not as engine errors.
    """
    if _RUNTIME.search(line):
        into.warning(line)
        return True
    if _ERROR.search(line):
        into.error(line)
        return True
    return False
