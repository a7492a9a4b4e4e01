"""The tables of a certificate for people, in the same order in the report and on the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from semblend.quality import breakdown
from semblend.quality.breakdown import Table
from semblend.quality.issuing import CertificatePart, Issue
from semblend.quality.monotone import PolicyStep, steps
from semblend.quality.redteam.finds import Findings
from semblend.quality.redteam.summaries import FIND_HEADINGS, NOT_COVERED, find_rows, said_of
from semblend.quality.reports import figure_tables

MOST_STEPS = 8
"""Steps to show: the least likely ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A table with a title and a sentence or two."""

    title: str
    text: str
    table: Table


def sections(found: Issue) -> list[Section]:
    """All sections, on the confirmation documents if they were measured."""
    part = found.confirmation or found.choice
    chosen = found.chosen.policy if found.chosen is not None else None
    where = "the confirmation documents" if found.confirmation else "the selection documents"
    result = [_side_by_side(part, where)]
    if found.confirmation is not None:
        result.append(_side_by_side(found.choice, "the selection documents"))
    if chosen is not None:
        result += [
            Section(
                title=f"The chosen policy, workload by workload, on {where}",
                text=f"{chosen}. Shares in per cent; for prose, of the likeliest next token.",
                table=breakdown.by_workload(part.figures, chosen),
            ),
            Section(
                title="Moved text by length",
                text="",
                table=breakdown.by_length(part.records, chosen),
            ),
            Section(
                title="Near-duplicates",
                text="All kinds of edits together, next to naive reuse. If that did not fail, the "
                "check would prove nothing.",
                table=breakdown.near_duplicates(part.records, chosen),
            ),
        ]
    if found.redteam is not None:
        result.append(redteam_section(found.redteam))
    return [*result, monotone_section(steps(part.records))]


def redteam_section(found: Findings) -> Section:
    """What the search for leaks found, and what it could not judge."""
    unjudged = ", ".join(found.hardly_tried) or "nothing"
    return Section(
        title="Red team",
        text=f"{found.sentence}. Could not be judged, because the model fails cold or too few "
        f"items counted: {unjudged}.",
        table=Table(headings=FIND_HEADINGS, rows=tuple(find_rows(found.finds))),
    )


def monotone_section(found: Sequence[PolicyStep]) -> Section:
    """Whether quality ever falls as a policy recomputes more."""
    falls = [step for step in found if step.falls]
    worst = sorted(found, key=lambda step: step.p_value)[: max(MOST_STEPS, len(falls))]
    return Section(
        title="More recompute never lowers quality",
        text=f"{len(found)} steps from one policy to the next more expensive one of its family, on "
        f"the same items. {len(falls)} lower quality by more than chance (one-sided sign test of "
        "agreement with cold, corrected for the number of steps). The least likely steps:",
        table=Table(
            headings=("workload", "from", "to", "lost", "won", "p"),
            rows=tuple(
                (s.workload, s.cheap, s.dear, str(s.lost), str(s.won), f"{s.p_value:.2g}")
                for s in worst
            ),
        ),
    )


def page(found: Issue, *, model: str, command: str) -> str:
    """The same sections as Markdown, for the docs."""
    policy = found.certificate.policy if found.certificate is not None else None
    redteam = None if found.redteam is None else found.redteam.to_dict()
    parts = [
        f"# What the certificate of `{model}` rests on\n",
        f"Certified: `{policy}`.\n" if policy else f"Not certified: {found.refusal}.\n",
        f"Made by `{command}`.\n",
        f"{NOT_COVERED} {said_of(redteam).capitalize()}.\n",
    ]
    for section in sections(found):
        parts.append(f"## {section.title}\n")
        if section.text:
            parts.append(f"{section.text}\n")
        parts.append(
            figure_tables.markdown_table(section.table.headings, section.table.rows) + "\n"
        )
    return "\n".join(parts).rstrip() + "\n"


def _side_by_side(part: CertificatePart, where: str) -> Section:
    """Policies measured on every workload, by letter, cheapest first; naive reuse by name."""
    dear = [judged.policy for judged in part.judged_policies if judged.policy != "none"]
    named = {chr(ord("A") + at): spec for at, spec in enumerate(dear[:26])}
    legend = "; ".join(f"{letter}: {spec}" for letter, spec in named.items())
    return Section(
        title=f"Candidates on {where}",
        text="In per cent: cold's right answers kept, greedy answers identical to cold's (95 % "
        f"interval), tokens recomputed. {legend}.",
        table=breakdown.candidates(part.figures, {"none": "none", **named}),
    )
