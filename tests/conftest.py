"""Property tests repeat and have no deadline, long files start first, one wheel is built."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

from tests.wheel import InstalledWheel, shared_wheel

# The same examples every time, so that a change alone decides whether its tests pass.
# `--hypothesis-profile searching` tries others.
settings.register_profile("searching", deadline=None)
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")


LONG_FILES = (
    "tests/fuzz/test_api.py",
    "tests/fleet/test_vllm_fleet.py",
    "tests/fleet/test_deployed.py",
    "tests/fleet/test_dynamo.py",
    "tests/fleet/test_vllm_server.py",
    "tests/fleet/test_vllm_nixl.py",
    "tests/fleet/test_sglang_fleet.py",
    "tests/fleet/test_faults.py",
    "tests/integration/sglang/test_reference_model.py",
    "tests/integration/sglang/test_policies.py",
    "tests/integration/sglang/test_lossless.py",
    "tests/integration/sglang/test_http.py",
    "tests/integration/vllm/test_server.py",
    "tests/integration/vllm/test_refusals.py",
    "tests/integration/vllm/test_sembench.py",
    "tests/integration/vllm/test_certified.py",
    "tests/integration/vllm/test_tensor_parallel.py",
    "tests/integration/vllm/test_fuzz.py",
    "tests/integration/vllm/test_weights.py",
)
"""The longest first. Started last, one of them would keep one process busy and the others idle."""


LAST_FILES = ("tests/integration/vllm/test_speculation.py",)
"""They load numba, behind which vLLM starts no engine: its search for kernels trips over it."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    long = {Path(config.rootpath, path): place for place, path in enumerate(LONG_FILES)}
    last = {Path(config.rootpath, path) for path in LAST_FILES}
    items.sort(key=lambda item: (item.path in last, long.get(item.path, len(long))))


@pytest.fixture(scope="session")
def installed_wheel(tmp_path_factory: pytest.TempPathFactory) -> InstalledWheel:
    """The wheel of this tree, in an environment of its own; one for all processes of a run."""
    mine = tmp_path_factory.getbasetemp()
    all_of_ours = mine.parent if "PYTEST_XDIST_WORKER" in os.environ else mine
    return shared_wheel(all_of_ours / "wheel")
