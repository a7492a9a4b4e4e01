"""Reports: one report object per result, and one file per output format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from sembench.errors import UsageError
from sembench.reports.csv_rows import render_csv
from sembench.reports.html_page import render_html
from sembench.reports.json_summary import render_json
from sembench.reports.load_page import render_load_html
from sembench.reports.load_report import LoadReport, build_load_report
from sembench.reports.load_text import render_load_csv, render_load_json, render_load_markdown
from sembench.reports.markdown import render_markdown
from sembench.reports.report import Report, build_report

AnyReport = TypeVar("AnyReport", Report, LoadReport)

RENDERERS: dict[str, Callable[[Report], str]] = {
    ".html": render_html,
    ".json": render_json,
    ".csv": render_csv,
    ".md": render_markdown,
}
LOAD_RENDERERS: dict[str, Callable[[LoadReport], str]] = {
    ".html": render_load_html,
    ".json": render_load_json,
    ".csv": render_load_csv,
    ".md": render_load_markdown,
}


def write_report(report: Report | LoadReport, path: Path) -> None:
    """Write a report in the format given by the file's suffix."""
    if isinstance(report, LoadReport):
        text = _renderer(LOAD_RENDERERS, path)(report)
    else:
        text = _renderer(RENDERERS, path)(report)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _renderer(
    known: dict[str, Callable[[AnyReport], str]], path: Path
) -> Callable[[AnyReport], str]:
    if path.suffix not in known:
        raise UsageError(f"--output: expected {', '.join(known)}, got {path.name!r}")
    return known[path.suffix]


__all__ = [
    "LOAD_RENDERERS",
    "RENDERERS",
    "LoadReport",
    "Report",
    "build_load_report",
    "build_report",
    "write_report",
]
