"""The demo shows what it says: reuse where there is some, and never a donor's fact by default."""

import html
import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from semblend.cli import demo
from semblend.core.outcomes import Outcome
from semblend.demo.demo_page import headline, write_report
from semblend.demo.scenarios import make_demo

MODEL = Path(__file__).parent.parent / "models" / "semblend-reference-27m"


@pytest.fixture(scope="module")
def output():
    return io.StringIO()


@pytest.fixture(scope="module")
def comparisons(output):
    scenes = make_demo(seed=7, paragraphs=8)
    console = Console(file=output, width=80)
    return {item.scenario.name: item for item in demo._run(str(MODEL), scenes, 1, console)}


def test_there_is_one_total_without_a_terminal(comparisons, output):
    lines = output.getvalue().splitlines()
    assert [line for line in lines if re.match(r"demo, cold prefills: (\d+) of \1 \(100%\)", line)]
    assert all(line.startswith("demo, cold prefills: ") for line in lines)


@pytest.mark.parametrize(
    "name", ["new instruction", "longer instruction", "reordered passages", "four donors"]
)
def test_moved_documents_are_reused_and_answered_the_same(comparisons, name):
    item = comparisons[name]
    assert item.warm.report.outcome is Outcome.MATERIALISED
    assert item.warm.report.reused_tokens > 0.75 * item.warm.report.prompt_tokens
    assert item.agreement == "same"
    assert item.cold.text == item.scenario.prompt.fact.value


def test_an_edited_copy_never_answers_with_the_donors_fact_by_default(comparisons):
    item = comparisons["edited copy"]
    assert item.warm.text == item.cold.text == item.scenario.prompt.fact.value


def test_naive_reuse_of_an_edited_copy_does_so_the_check_can_fail(comparisons):
    assert comparisons["edited copy, naive"].agreement == "donor's fact"


@pytest.mark.parametrize("name", ["unseen document", "other tenant"])
def test_controls_stay_cold(comparisons, name):
    report = comparisons[name].warm.report
    assert report.outcome is Outcome.COLD
    assert report.reused_tokens == 0


def test_token_counts_add_up(comparisons):
    for item in comparisons.values():
        report = item.warm.report
        assert (
            report.exact_tokens + report.reused_tokens + report.computed_tokens
            == report.prompt_tokens
        )
        assert report.strip[0].start == 0
        assert report.strip[-1].end == report.prompt_tokens


def test_the_report_is_one_page_that_loads_nothing(comparisons, tmp_path):
    path = tmp_path / "made" / "demo.html"
    write_report(path, list(comparisons.values()), model="reference", standing="certified")
    page = path.read_text()
    for name in comparisons:
        assert html.escape(name) in page
    assert not re.search(r"(src|href)=|url\(|@import", page)


def test_the_report_shows_what_was_asked_and_claims_speed_only_for_certified_reuse(
    comparisons, tmp_path
):
    path = tmp_path / "demo.html"
    write_report(path, list(comparisons.values()), model="m<1>", standing="certified")
    page = path.read_text()
    assert "m&lt;1&gt;" in page
    for item in comparisons.values():
        assert html.escape(item.scenario.prompt.fact.question) in page
    faster = {name for name, item in comparisons.items() if "faster" in headline(item)}
    assert faster == {
        "new instruction",
        "longer instruction",
        "reordered passages",
        "four donors",
        "edited copy",
    }
    assert page.count("x faster") == len(faster)
