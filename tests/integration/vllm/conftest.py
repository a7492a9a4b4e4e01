"""Real vLLM on a CPU. `make test-vllm` makes the environment and runs these.

TEST_VLLM_RUNNER (v1 or v2) and TEST_VLLM_SCHEDULING (sync or async) choose for the whole process;
without them vLLM takes what it takes on a CPU, the V1 runner and synchronous scheduling.
"""

from __future__ import annotations

import importlib.util
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmarks.vllm_runners import Runner, Scheduling, prepare

ROOT = Path(__file__).parents[3]
HAS_VLLM = importlib.util.find_spec("vllm") is not None

# Read when vLLM is imported, and inherited by the processes it starts.
os.environ.update(
    {
        "HF_HUB_OFFLINE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "WARNING"),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "2"),
        "OMP_WAIT_POLICY": "passive",
        "TOKENIZERS_PARALLELISM": "false",
        # Samples are taken by chance; the tests of them say so.
        "SEMBLEND_SHADOW_RATE": os.environ.get("SEMBLEND_SHADOW_RATE", "0"),
        # On a CPU little pays, and how much depends on the day; the tests of it say so.
        "SEMBLEND_MEASURE_SPEED": os.environ.get("SEMBLEND_MEASURE_SPEED", "0"),
        # Workers in processes of their own load this tree, and the tests' connector by its name.
        "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT))),
    }
)

CHOSEN = {"TEST_VLLM_RUNNER", "TEST_VLLM_SCHEDULING"} & set(os.environ)

if HAS_VLLM and CHOSEN:
    prepare(
        Runner(os.environ.get("TEST_VLLM_RUNNER", "v1")),
        Scheduling(os.environ.get("TEST_VLLM_SCHEDULING", "sync")),
    )

if HAS_VLLM:
    # Importing vLLM warns about what it imports; test modules are strict when collected.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import tests.integration.vllm.engines  # noqa: F401

collect_ignore_glob = [] if HAS_VLLM else ["test_*.py"]


def pytest_report_header(config: pytest.Config) -> str:
    if not HAS_VLLM:
        return "vLLM: not installed here; run make test-vllm"
    chosen = ", ".join(f"{name}={os.environ[name]}" for name in sorted(CHOSEN))
    return f"vLLM: installed; {chosen or 'its own choice of runner and scheduling'}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "integration/vllm" in str(item.path):
            # vLLM and what it imports warn about themselves; our own tests are strict elsewhere.
            item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture(scope="module")
def engines() -> Iterator[Any]:
    """This process's one engine at a time, closed at the module's end."""
    from tests.integration.vllm.engines import EngineFactory

    factory = EngineFactory()
    yield factory
    factory.close()


@pytest.fixture
def make_engine(engines: Any) -> Callable[..., Any]:
    """Makes an engine, or hands out the one there is if it was made alike."""
    return engines.make
