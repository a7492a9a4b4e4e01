"""docs/metrics.md is true: its examples run, and it explains every key of a result."""

import doctest
import re
from pathlib import Path

import pytest

from sembench.metrics import Aggregate
from sembench.results import ROW_FIELDS

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
TEXT = PAGE.read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```pycon\n(.*?)```", TEXT, flags=re.DOTALL)
NAMES = set(re.findall(r"`([a-z0-9_]+)`", TEXT))


def test_every_worked_example_gives_what_the_page_says():
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner(verbose=False)
    namespace = {}
    for number, source in enumerate(EXAMPLES):
        example = parser.get_doctest(source, namespace, f"example-{number}", str(PAGE), 0)
        report = []
        runner.run(example, out=report.append, clear_globs=False)
        assert not report, "".join(report)
        namespace = example.globs
    assert runner.tries > 30


@pytest.mark.parametrize("key", Aggregate().to_dict())
def test_every_aggregate_key_is_explained(key):
    assert key in NAMES, f"docs/metrics.md does not explain the aggregate key {key!r}"


@pytest.mark.parametrize("field", ROW_FIELDS)
def test_every_row_field_is_explained(field):
    assert field in NAMES, f"docs/metrics.md does not explain the row field {field!r}"
