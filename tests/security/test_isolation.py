"""Promises: what a tenant sees and what is stored under its name depends on nobody else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from semblend.core.faults import planted
from semblend.core.namespace import Namespace
from semblend.core.settings import EmbedderKind, Settings
from semblend.engine.api import GenerationRequest, SamplingParams
from semblend.engine.engine import EmbeddedEngine
from semblend.engine.options import EngineOptions
from semblend.kv.segments import SegmentKey
from semblend.pipeline import SemBlendPipeline
from semblend.serve.app import create_app
from semblend.serve.options import ServeOptions
from semblend.serve.watch.json_logs import JsonFormatter
from tests.serve.fakes import ScriptedEngine
from tests.serve.support import MODEL, MODEL_NAME, call
from tests.serve.texts import document

ALICE, BOB, ADMIN = "sk-alice-0123456789", "sk-bob-0123456789", "sk-admin-0123456789"
KEYS = {"keys": {ALICE: "alice", BOB: "bob", ADMIN: {"tenant": "ops", "admin": True}}}
OURS_TO_VARY = {"started_at", "uptime_s", "now", "ttft_ms", "total_ms", "queue_ms", "prefill_ms"}


@pytest.fixture(scope="module")
def engine() -> Iterator[EmbeddedEngine]:
    torch.set_num_threads(1)
    settings = Settings(allow_uncertified=True, embedder=EmbedderKind.NONE, shadow_rate=0.0)
    options = EngineOptions(device="cpu", pool_bytes=64 * 2**20, host_donor_bytes=64 * 2**20)
    with EmbeddedEngine.load(str(MODEL), options=options, settings=settings) as loaded:
        yield loaded


def served(tmp_path: Path, engine: Any, **more: Any) -> Any:
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps(KEYS))
    return create_app(engine, ServeOptions(model_name=MODEL_NAME, key_file=keys, **more))


def ask(app: Any, key: str, prompt: str) -> Any:
    return call(
        app,
        "POST",
        "/v1/completions",
        json={"model": MODEL_NAME, "prompt": prompt, "max_tokens": 2, "temperature": 0},
        headers={"authorization": f"Bearer {key}", "x-request-id": "mine"},
    )


def seen_by(app: Any, key: str, path: str = "/semblend/state") -> Any:
    return call(app, "GET", path, headers={"authorization": f"Bearer {key}"})


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: without_times(v) for k, v in value.items() if k not in OURS_TO_VARY}
    return [without_times(item) for item in value] if isinstance(value, list) else value


def test_the_page_shows_a_tenant_the_same_with_and_without_others(tmp_path: Path) -> None:
    """Not even a gap in a counter, or an older request that was forgotten, tells of them."""

    def story(*, others: int) -> Any:
        app = served(tmp_path, ScriptedEngine(), recent_requests=4)
        told = []
        for turn in range(3):
            for _ in range(others):
                assert ask(app, BOB, "bob's").status_code == 200
            assert ask(app, ALICE, f"hello {turn}").status_code == 200
            told.append(without_times(seen_by(app, ALICE).json()))
        since = told[1]["cursor"]
        told.append(without_times(seen_by(app, ALICE, f"/semblend/state?since={since}").json()))
        return told

    alone, crowded = story(others=0), story(others=7)
    assert alone == crowded
    assert [view["key"] for view in alone[2]["requests"]] == [1, 2, 3]


def test_an_admin_still_sees_everybody_in_order(tmp_path: Path) -> None:
    app = served(tmp_path, ScriptedEngine(), recent_requests=3)
    for key in (ALICE, BOB, BOB, ALICE, BOB):
        ask(app, key, "hello")
    seen = seen_by(app, ADMIN).json()
    assert [view["key"] for view in seen["requests"]] == [3, 4, 5]
    assert len({view["tenant"] for view in seen["requests"]}) == 2
    assert seen["outcomes"]["cold"] == 5


def test_an_answer_tells_nothing_of_what_another_tenant_sent(
    tmp_path: Path, engine: EmbeddedEngine
) -> None:
    """Body and headers but for times and random ids are those of a server without Bob."""

    def answered(*, others: bool) -> tuple[Any, Any]:
        engine.drop_donors()
        engine.flush_prefix_cache()
        app = served(tmp_path, engine)
        secret = document(300)
        if others:
            assert ask(app, BOB, secret).status_code == 200
            assert ask(app, BOB, "An opening of Bob's own. " + secret).status_code == 200
            engine.donors.wait()
        first = ask(app, ALICE, secret)
        engine.donors.wait()
        replies = [first, ask(app, ALICE, "Another opening. " + secret)]
        bodies = [without_times(reply.json()) for reply in replies]
        for body in bodies:
            for volatile in ("id", "created"):
                body.pop(volatile)
            body["semblend"].pop("donor_ids")
            body["semblend"].pop("times")
        headers = [
            {
                name: value
                for name, value in reply.headers.items()
                if not name.endswith("-ms") and name != "content-length"  # which counts times
            }
            for reply in replies
        ]
        return bodies, headers

    alone, crowded = answered(others=False), answered(others=True)
    assert alone == crowded
    assert [reply["semblend"]["outcome"] for reply in alone[0]] == ["cold", "materialised"]


def test_stored_objects_are_named_under_a_secret(tmp_path: Path) -> None:
    """Who knows the text and the namespace, but not the secret, cannot tell whether it is held."""
    settings = Settings(allow_uncertified=True, embedder=EmbedderKind.NONE, shadow_rate=0.0)
    options = EngineOptions(
        device="cpu",
        pool_bytes=32 * 2**20,
        host_donor_bytes=32 * 2**20,
        disk_donor_bytes=32 * 2**20,
        donor_folder=tmp_path / "kv",
    )
    tokens = np.arange(100, 300, dtype=np.int32)
    with EmbeddedEngine.load(str(MODEL), options=options, settings=settings) as engine:
        namespace = engine.namespace(tenant="alice")
        guessed = SegmentKey.of(namespace.key(), tokens, 0, len(tokens))
        held = SegmentKey.of(engine.pipeline.share_key(namespace), tokens, 0, len(tokens))
        assert guessed.name != held.name
        assert engine.pipeline.share_key(namespace) != namespace.key()
        engine.submit(
            GenerationRequest(
                request_id="r",
                tokens=tokens,
                namespace=namespace,
                sampling=SamplingParams(max_tokens=1),
            )
        ).result()
        engine.donors.wait()
        assert held in engine._tiers
        assert guessed not in engine._tiers


def test_processes_without_a_configured_secret_share_no_names() -> None:
    namespace = Namespace.of(model="m", tenant="alice")
    quiet = Settings(embedder=EmbedderKind.NONE)
    secret = quiet.model_copy(update={"namespace_secret": "a shared secret"})
    with SemBlendPipeline(quiet) as one, SemBlendPipeline(quiet) as other:
        assert one.share_key(namespace) != other.share_key(namespace)
    with SemBlendPipeline(secret) as one, SemBlendPipeline(secret) as other:
        assert one.share_key(namespace) == other.share_key(namespace)


FAULTS = "index_read:0.3,plan:0.2,lease:0.3,tier_read:0.3,checksum:0.3,copy:0.3,nested_pass:0.3"


def test_no_log_line_metric_or_error_holds_text_or_a_tenants_name(
    tmp_path: Path, engine: EmbeddedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    """Even while everything fails: with faults planted, errors pass through every logger."""
    caplog.set_level("DEBUG")
    app = served(tmp_path, engine)
    word = "Zanzibar-of-the-prompt"
    said = []
    with planted(FAULTS, seed=5) as faults:
        for turn in range(12):
            opening = f"{word} {turn}. "
            said.append(ask(app, ALICE, opening + document(turn % 2, sentences=40)))
            engine.donors.wait()
    assert len(faults.fired) > 3
    assert {reply.status_code for reply in said} == {200}
    body = {"model": word, "prompt": word, "stop": [word] * 9, "temperature": word}
    headers = {"authorization": f"Bearer {ALICE}"}
    refused = call(app, "POST", "/v1/completions", json=body, headers=headers)
    assert refused.status_code == 400
    lines = [JsonFormatter().format(record) for record in caplog.records]
    assert any('"generation"' in line for line in lines)
    told = "\n".join([*lines, refused.text, seen_by(app, ADMIN, "/metrics").text])
    told += json.dumps(seen_by(app, ADMIN).json())
    for secret in (word, "lantern", "harbour", "alice", ALICE):
        assert secret not in told, secret
