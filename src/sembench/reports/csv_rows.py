"""A report's requests as CSV: one line each, columns in the order of the result format."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from typing import Any

from sembench.reports.report import Report
from sembench.results import ROW_FIELDS

_LONG = frozenset({"output_top_logprobs", "output_token_ids"})
_COLUMNS = tuple(name for name in ROW_FIELDS if name not in _LONG)


def render_csv(report: Report) -> str:
    """The rows of a replay or an offline run."""
    return csv_text(_COLUMNS, report.rows)


def csv_text(columns: Sequence[str], rows: Iterable[object]) -> str:
    """Write the named fields as CSV; prevent spreadsheets from running cells as formulas."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_cell(getattr(row, name)) for name in columns])
    return out.getvalue()


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple | list | dict):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return "'" + value
    return value
