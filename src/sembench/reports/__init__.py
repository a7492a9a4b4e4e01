"""Reports: one :class:`Report` is built from a result, and one file a format renders it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sembench.errors import UsageError
from sembench.reports.csv_rows import render_csv
from sembench.reports.html_page import render_html
from sembench.reports.json_summary import render_json
from sembench.reports.markdown import render_markdown
from sembench.reports.report import Report, build_report

RENDERERS: dict[str, Callable[[Report], str]] = {
    ".html": render_html,
    ".json": render_json,
    ".csv": render_csv,
    ".md": render_markdown,
}


def write_report(report: Report, path: Path) -> None:
    """Write a report in the format its suffix names."""
    if path.suffix not in RENDERERS:
        raise UsageError(f"--output: {', '.join(RENDERERS)} expected, got {path.name!r}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(RENDERERS[path.suffix](report), encoding="utf-8")


__all__ = ["RENDERERS", "Report", "build_report", "write_report"]
