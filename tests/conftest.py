"""Property tests have no deadline, long files start first, and the wheel is built once."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

from tests.wheel import InstalledWheel, build_wheel, install_wheel

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


LONG_FILES = (
    "tests/fuzz/test_api.py",
    "tests/integration/vllm/test_server.py",
    "tests/integration/vllm/test_sembench.py",
    "tests/integration/vllm/test_refusals.py",
    "tests/integration/vllm/test_certified.py",
    "tests/integration/vllm/test_fuzz.py",
)
"""Minutes each. Started last, one of them would keep one process busy and the others idle."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    long = {Path(config.rootpath, path) for path in LONG_FILES}
    items.sort(key=lambda item: item.path not in long)


@pytest.fixture(scope="session")
def installed_wheel(tmp_path_factory: pytest.TempPathFactory) -> InstalledWheel:
    """The wheel of this tree, in an environment of its own."""
    folder = tmp_path_factory.mktemp("wheel")
    return install_wheel(build_wheel(folder), folder / "environment")
