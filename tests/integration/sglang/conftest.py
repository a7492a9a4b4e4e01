"""Real SGLang on a CPU. `make test-sglang` makes the environment and runs these."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HAS_SGLANG = importlib.util.find_spec("sglang") is not None
# Parts that need no SGLang run everywhere.
EVERYWHERE = {"test_parts.py", "test_pool_on_gpu.py"}
collect_ignore = (
    []
    if HAS_SGLANG
    else [
        path.name for path in Path(__file__).parent.glob("test_*.py") if path.name not in EVERYWHERE
    ]
)


def pytest_report_header(config: pytest.Config) -> str:
    return "SGLang: installed" if HAS_SGLANG else "SGLang: not installed; run make test-sglang"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "integration/sglang" in str(item.path):
            # SGLang and what it imports warn about themselves; our tests are strict elsewhere.
            item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture(scope="module")
def make_engine() -> Iterator[Callable[..., Any]]:
    """Engines for one module, one at a time, closed at its end."""
    from tests.integration.sglang.engines import Engine, SchedulerDiedError

    made: dict[str, Any] = {}
    failed: dict[str, SchedulerDiedError] = {}

    def make(model: str = "llama", **options: Any) -> Engine:
        key = repr((model, sorted(options.items(), key=lambda item: item[0])))
        if key in failed:
            raise failed[key]  # starting takes half a minute: not once a test
        if key not in made:
            while made:
                made.popitem()[1].close()
            try:
                made[key] = Engine(model, **options)
            except SchedulerDiedError as error:
                failed[key] = error
                raise
        return made[key]

    yield make
    for engine in made.values():
        engine.close()
