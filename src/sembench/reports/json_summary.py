"""A report as JSON: everything of the result but its rows, and what the report adds."""

from __future__ import annotations

import json

from sembench.reports.report import Report


def render_json(report: Report) -> str:
    """The summary."""
    return (
        json.dumps(
            {
                "report_version": "sembench.report.v1",
                "title": report.title,
                **report.result.head(),
                "paired": dict(report.paired),
                "questions": [
                    {
                        "title": question.title,
                        "answer": question.answer,
                        "rates": {bar.label: bar.rate for bar in question.bars},
                    }
                    for question in report.questions
                ],
                "checks": [
                    {"label": check.label, "value": check.value, "good": check.good}
                    for check in report.checks
                ],
                "provenance": dict(report.facts),
            },
            indent=2,
            ensure_ascii=False,
        )
        + "\n"
    )
