"""One real engine with the bundled model for the whole set; scripted ones where faults are."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest
import torch

from semblend.core.settings import EmbedderKind, Settings
from semblend.engine.engine import EmbeddedEngine
from semblend.engine.options import EngineOptions
from tests.serve.fakes import ScriptedEngine
from tests.serve.support import MODEL, Running, running


@pytest.fixture(scope="session")
def engine() -> Iterator[EmbeddedEngine]:
    torch.set_num_threads(1)
    options = EngineOptions(device="cpu", pool_bytes=256 * 2**20, host_donor_bytes=256 * 2**20)
    settings = Settings(
        allow_uncertified=True,
        embedder=EmbedderKind.NONE,
        recompute_policy="span_head(8)",
        shadow_rate=0.0,  # samples are drawn at random
    )
    with EmbeddedEngine.load(str(MODEL), options=options, settings=settings) as loaded:
        yield loaded


@pytest.fixture(scope="session")
def server(engine: EmbeddedEngine) -> Iterator[Running]:
    with running(engine) as host:
        yield host


@pytest.fixture(scope="session")
def shared(engine: EmbeddedEngine) -> Iterator[Running]:
    """The same engine where a header says whose prompt it is."""
    with running(engine, trust_tenant_header=True) as host:
        yield host


@pytest.fixture(scope="session")
def client(server: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.v1, api_key="unused", max_retries=0) as made:
        yield made


@pytest.fixture
def scripted() -> ScriptedEngine:
    return ScriptedEngine()
