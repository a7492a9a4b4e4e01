"""A report as JSON: the result without its rows, plus what the report adds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sembench.reports.report import Check, Report, ReportQuestion


def render_json(report: Report) -> str:
    return json_text(
        {
            "report_version": "sembench.report.v1",
            "title": report.title,
            **report.result.head(),
            "paired": dict(report.paired),
            "questions": plain_questions(report.questions),
            "checks": plain_checks(report.checks),
            "provenance": dict(report.facts),
        }
    )


def json_text(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def plain_questions(questions: Sequence[ReportQuestion]) -> list[dict[str, Any]]:
    """Questions and answers, with rates by name."""
    return [
        {
            "title": question.title,
            "answer": question.answer,
            "rates": {bar.label: bar.rate for bar in question.bars},
        }
        for question in questions
    ]


def plain_checks(checks: Sequence[Check]) -> list[dict[str, Any]]:
    """Checks; `good` is null if the check did not run."""
    return [{"label": check.label, "value": check.value, "good": check.good} for check in checks]
