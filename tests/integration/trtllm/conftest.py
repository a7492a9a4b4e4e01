"""Engines with the adapter in them; torch on one thread, so that numbers do not depend on cores."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.integration.trtllm.engines import Maker, making


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Maker]:
    with making(monkeypatch, tmp_path) as maker:
        yield maker
