"""Promises: no key, no entry; a key sees its own tenant; keys are held only as digests."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from semblend.core.errors import SettingsError
from semblend.serve.api_errors import ApiError
from semblend.serve.app import create_app
from semblend.serve.auth import Authenticator, KeyRing, Pseudonyms
from semblend.serve.options import ServeOptions
from tests.serve.fakes import ScriptedEngine
from tests.serve.support import MODEL_NAME, call

ALICE, BOB, ADMIN = "sk-alice-0123456789", "sk-bob-0123456789", "sk-admin-0123456789"


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    digest = hashlib.sha256(BOB.encode()).hexdigest()
    path = tmp_path / "keys.json"
    path.write_text(
        json.dumps(
            {
                "keys": {
                    ALICE: "alice",
                    f"sha256:{digest}": {"tenant": "bob"},
                    ADMIN: {"tenant": "ops", "admin": True},
                }
            }
        )
    )
    return path


@pytest.fixture
def app(key_file: Path, scripted: ScriptedEngine) -> Any:
    return create_app(scripted, ServeOptions(model_name=MODEL_NAME, key_file=key_file))


def bearer(key: str, **more: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}", **more}


def ask(app: Any, headers: dict[str, str]) -> Any:
    body = {"model": MODEL_NAME, "prompt": "hello", "max_tokens": 1}
    return call(app, "POST", "/v1/completions", json=body, headers=headers)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": ALICE},
        {"authorization": f"Basic {ALICE}"},
        {"authorization": "Bearer "},
        {"authorization": f"Bearer {ALICE}x"},
        {"authorization": f"Bearer {hashlib.sha256(BOB.encode()).hexdigest()}"},
        {"authorization": "Bearer é".encode("latin-1")},
    ],
)
def test_without_a_known_key_nothing_but_health_and_the_page_is_served(
    app: Any, headers: Any
) -> None:
    response = ask(app, headers)
    assert response.status_code == 401
    assert response.json()["error"]["type"] == "authentication_error"
    assert response.headers["www-authenticate"].startswith("Bearer")
    for path in ("/v1/models", "/metrics", "/semblend/state", "/nothing"):
        assert call(app, "GET", path, headers=headers).status_code == 401
    for path in ("/", "/health", "/health/live", "/health/ready"):
        assert call(app, "GET", path, headers=headers).status_code == 200


def test_the_body_of_an_unknown_caller_is_not_read(app: Any) -> None:
    async def endless() -> Any:
        while True:
            yield b" "

    response = call(
        app,
        "POST",
        "/v1/completions",
        content=endless(),
        headers={"content-type": "application/json"},
    )
    assert response.status_code == 401


@pytest.mark.parametrize("trusts", [False, True])
def test_a_key_becomes_its_tenant_and_no_header_changes_that(
    key_file: Path, scripted: ScriptedEngine, trusts: bool
) -> None:
    options = ServeOptions(model_name=MODEL_NAME, key_file=key_file, trust_tenant_header=trusts)
    app = create_app(scripted, options)
    for key, tenant in ((ALICE, "alice"), (BOB, "bob"), (ADMIN, "ops")):
        for headers in ({}, {"x-tenant-id": tenant}):
            assert ask(app, bearer(key, **headers)).status_code == 200
            assert scripted.handles[-1].request.namespace.tenant == tenant
    served = len(scripted.handles)
    for key in (ALICE, BOB, *(() if trusts else (ADMIN,))):
        for claimed in ("victim", "none", ""):
            refused = ask(app, bearer(key, **{"x-tenant-id": claimed}))
            assert refused.status_code == (403 if trusts else 400), "not answered as somebody else"
            assert refused.json()["error"]["param"] == "x-tenant-id"
    assert len(scripted.handles) == served


def test_a_trusted_gateway_may_name_the_tenant_and_others_may_not(
    key_file: Path, scripted: ScriptedEngine
) -> None:
    app = create_app(
        scripted,
        ServeOptions(model_name=MODEL_NAME, key_file=key_file, trust_tenant_header=True),
    )
    assert ask(app, bearer(ADMIN, **{"x-tenant-id": "victim"})).status_code == 200
    assert scripted.handles[-1].request.namespace.tenant == "victim"
    refused = ask(app, bearer(ADMIN, **{"x-tenant-id": "a b"}))
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "x-tenant-id"


def test_an_untrusted_tenant_header_is_refused_rather_than_ignored(
    scripted: ScriptedEngine,
) -> None:
    app = create_app(scripted, ServeOptions(model_name=MODEL_NAME))
    response = ask(app, {"x-tenant-id": "alice"})
    assert response.status_code == 400
    assert "--trust-tenant-header" in response.json()["error"]["message"]
    assert not scripted.handles


def test_where_a_header_names_tenants_a_prompt_without_one_is_refused(
    scripted: ScriptedEngine,
) -> None:
    """Its namespace would be that of everybody who sends none, and of a tenant of its name."""
    app = create_app(scripted, ServeOptions(model_name=MODEL_NAME, trust_tenant_header=True))
    chat = {"model": MODEL_NAME, "messages": [{"role": "user", "content": "hello"}]}
    for refused in (ask(app, {}), call(app, "POST", "/v1/chat/completions", json=chat)):
        assert refused.status_code == 400
        assert refused.json()["error"]["code"] == "tenant_header_missing"
    assert not scripted.handles
    assert ask(app, {"x-tenant-id": "none"}).status_code == 200
    for path in ("/v1/models", "/semblend/state", "/metrics", "/health"):
        assert call(app, "GET", path).status_code == 200, "watching needs no tenant"


def test_a_tenant_sees_its_own_requests_and_nothing_of_others(app: Any) -> None:
    ask(app, bearer(ALICE, **{"x-request-id": "of-alice"}))
    ask(app, bearer(BOB, **{"x-request-id": "of-bob"}))

    def state(key: str) -> Any:
        return call(app, "GET", "/semblend/state", headers=bearer(key)).json()

    mine = state(ALICE)
    assert [view["id"] for view in mine["requests"]] == ["of-alice"]
    assert mine["outcomes"]["cold"] == 1
    assert mine["scope"] == "tenant"
    assert mine["store"] is mine["load"] is None
    assert "of-bob" not in json.dumps(mine)
    everything = state(ADMIN)
    assert [view["id"] for view in everything["requests"]] == ["of-alice", "of-bob"]
    assert everything["outcomes"]["cold"] == 2
    assert everything["store"] is not None
    # Not even an admin reads a tenant's name here: hashes tell them apart.
    assert "alice" not in json.dumps([view["tenant"] for view in everything["requests"]])


def test_metrics_add_up_all_tenants_and_so_need_an_admin(
    app: Any, key_file: Path, scripted: ScriptedEngine
) -> None:
    assert call(app, "GET", "/metrics", headers=bearer(ALICE)).status_code == 403
    assert call(app, "GET", "/metrics", headers=bearer(ADMIN)).status_code == 200
    opened = create_app(
        scripted, ServeOptions(model_name=MODEL_NAME, key_file=key_file, public_metrics=True)
    )
    assert call(opened, "GET", "/metrics").status_code == 200


def test_keys_are_kept_only_as_digests(key_file: Path) -> None:
    ring = KeyRing.from_file(key_file)
    held = repr([(key.digest, key.caller) for key in ring._keys])
    assert ALICE not in held
    assert ADMIN not in held
    found = ring.find(BOB)
    assert found is not None
    assert found.tenant == "bob"
    assert ring.find("") is None


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ("{", "not valid JSON"),
        ("[]", "expected"),
        ('{"keys": []}', "expected"),
        ('{"keys": {}}', "at least one key"),
        ('{"keys": {"short": "a"}}', "can be guessed"),
        ('{"keys": {"sk-0123456789abcdef": ""}}', "tenant"),
        ('{"keys": {"sk-0123456789abcdef": 5}}', "tenant"),
        ('{"keys": {"sk-0123456789abcdef": {"tenant": "a", "admin": "yes"}}}', "admin"),
    ],
)
def test_a_wrong_key_file_is_refused_at_start_without_repeating_keys(
    tmp_path: Path, content: str, word: str
) -> None:
    path = tmp_path / "keys.json"
    path.write_text(content)
    with pytest.raises(SettingsError, match=word) as caught:
        KeyRing.from_file(path)
    assert "0123456789abcdef" not in str(caught.value)
    with pytest.raises(SettingsError):
        KeyRing.from_file(tmp_path / "absent.json")


def test_a_missing_key_and_an_unknown_one_are_told_apart(key_file: Path) -> None:
    authenticator = Authenticator(ServeOptions(model_name="m", key_file=key_file))
    with pytest.raises(ApiError, match="Authorization: Bearer"):
        authenticator.identify({})
    with pytest.raises(ApiError, match="unknown API key"):
        authenticator.identify({"authorization": "Bearer nobody"})


def test_pseudonyms_are_stable_with_a_secret_and_tell_tenants_apart() -> None:
    one, same, other = Pseudonyms("s"), Pseudonyms("s"), Pseudonyms("")
    assert one.tenant("a") == same.tenant("a") != one.tenant("b")
    assert one.donor("a", "d") != one.donor("b", "d")
    assert one.tenant("a") != other.tenant("a")
