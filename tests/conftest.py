"""Property tests have no deadline: a busy machine is no failure. The wheel is built once."""

from __future__ import annotations

import pytest
from hypothesis import settings

from tests.wheel import InstalledWheel, build_wheel, install_wheel

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


@pytest.fixture(scope="session")
def installed_wheel(tmp_path_factory: pytest.TempPathFactory) -> InstalledWheel:
    """The wheel of this tree, in an environment of its own."""
    folder = tmp_path_factory.mktemp("wheel")
    return install_wheel(build_wheel(folder), folder / "environment")
