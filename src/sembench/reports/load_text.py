"""The report of a load run as Markdown, CSV and JSON."""

from __future__ import annotations

from dataclasses import fields

from sembench.load_results import LoadRow
from sembench.reports.csv_rows import csv_text
from sembench.reports.json_summary import json_text, plain_checks, plain_questions
from sembench.reports.load_report import LoadReport
from sembench.reports.markdown import checks_table, escape, text_table


def render_load_markdown(report: LoadReport) -> str:
    """For pull requests and lab pages."""
    parts = [f"# {escape(report.title)}", ""]
    for question in report.questions:
        parts += [f"**{question.title}** {escape(question.answer)}", ""]
    parts += ["## Times of answered requests, from when they were due", ""]
    parts += text_table(report.times.columns, report.times.lines)
    parts += ["", "## Checks", "", *checks_table(report.checks)]
    parts += ["", "## Where the figures come from", "", *text_table(("", ""), report.facts)]
    return "\n".join(parts) + "\n"


def render_load_csv(report: LoadReport) -> str:
    """One line per request, in the order they were due."""
    rows = sorted(report.result.requests, key=lambda row: row.due_s)
    return csv_text([field.name for field in fields(LoadRow)], rows)


def render_load_json(report: LoadReport) -> str:
    """The result without its rows, plus what the report adds."""
    result = report.result
    return json_text(
        {
            "report_version": "sembench.report.v1",
            "title": report.title,
            "run": result.run.to_dict(),
            "config": dict(result.config),
            "environment": dict(result.environment),
            "engine": None if result.engine is None else dict(result.engine),
            "aggregate": dict(result.aggregate),
            "questions": plain_questions(report.questions),
            "checks": plain_checks(report.checks),
            "provenance": dict(report.facts),
        }
    )
