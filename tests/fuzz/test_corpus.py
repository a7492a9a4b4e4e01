"""Promise: no input makes a parser fail otherwise than it documents.

Replays the corpus (a file for everything that was ever found, and the seeds) and a small
share of what `python -m benchmarks.fuzz` does at length.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.fuzz.structured import damaged
from benchmarks.fuzz.targets import TARGETS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

CORPUS = Path(__file__).parent / "corpus"
FILES = sorted(path for path in CORPUS.rglob("*") if path.is_file())


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("name", TARGETS)
def test_every_parser_has_seeds_that_are_kept(name: str) -> None:
    kept = {path.read_bytes() for path in (CORPUS / name).iterdir()}
    assert kept
    for seed in TARGETS[name].seeds():
        TARGETS[name].run(seed)


@pytest.mark.filterwarnings("ignore")  # the compiler's opinions on what a policy's text holds
@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_what_was_found_once_stays_fixed(path: Path) -> None:
    TARGETS[path.parent.name].run(path.read_bytes())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TARGETS)
def test_damaged_documents_are_refused_as_documented(name: str) -> None:
    target = TARGETS[name]

    @settings(
        max_examples=60,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.one_of(damaged(target.seeds()), st.binary(max_size=64)))
    def check(data: bytes) -> None:
        target.run(data)

    check()
