"""Promise: within a tenant, a donor written to do harm reaches only whoever wrote it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from semblend.core.errors import SettingsError
from semblend.core.namespace import Namespace, salt_part
from semblend.core.outcomes import DeclineReason
from semblend.core.settings import DonorSharing, EmbedderKind, Settings
from semblend.engine.engine import EmbeddedEngine
from semblend.engine.options import EngineOptions
from semblend.integration.isolation import by_extra_key, by_salt, by_salt_number
from semblend.pipeline import SemBlendPipeline
from semblend.serve.app import create_app
from semblend.serve.auth import KeyRing
from semblend.serve.gateway.placing import Placer
from semblend.serve.options import ServeOptions
from tests.serve.support import MODEL, MODEL_NAME, call
from tests.serve.texts import document

ANNA, ANNAS_OTHER, MALLORY = "sk-anna-0123456789", "sk-anna-9876543210", "sk-mallory-0123456789"
KEYS = {
    "keys": {
        ANNA: {"tenant": "acme", "principal": "anna"},
        ANNAS_OTHER: {"tenant": "acme", "principal": "anna"},
        MALLORY: "acme",
    }
}


def engine(sharing: DonorSharing) -> EmbeddedEngine:
    torch.set_num_threads(1)
    settings = Settings(
        allow_uncertified=True, embedder=EmbedderKind.NONE, shadow_rate=0.0, share_donors=sharing
    )
    options = EngineOptions(device="cpu", pool_bytes=64 * 2**20, host_donor_bytes=64 * 2**20)
    return EmbeddedEngine.load(str(MODEL), options=options, settings=settings)


def outcome_after(
    running: EmbeddedEngine, options: ServeOptions, first: str | None, second: str | None
) -> str:
    """What becomes of a document that `second` sends after `first` sent it."""
    app = create_app(running, options)
    running.drop_donors()
    running.flush_prefix_cache()
    text = document(300)
    told: Any = None
    for key, opening in ((first, "A prefix of some kind. "), (second, "Another opening. ")):
        told = call(
            app,
            "POST",
            "/v1/completions",
            json={"model": MODEL_NAME, "prompt": opening + text, "max_tokens": 1},
            headers={} if key is None else {"authorization": f"Bearer {key}"},
        )
        assert told.status_code == 200, told.text
        running.donors.wait()
    return str(told.json()["semblend"]["outcome"])


def test_keys_of_one_tenant_share_donors_only_if_the_operator_says_so(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps(KEYS))
    guarded = ServeOptions(model_name=MODEL_NAME, key_file=keys)
    with engine(DonorSharing.PRINCIPAL) as running:
        assert outcome_after(running, guarded, MALLORY, ANNA) == "cold"
        assert outcome_after(running, guarded, ANNA, ANNA) == "materialised"
        assert outcome_after(running, guarded, ANNAS_OTHER, ANNA) == "materialised"
        # Without keys there is one principal, and a first try of SemBlend shows reuse.
        assert outcome_after(running, ServeOptions(model_name=MODEL_NAME), None, None) == (
            "materialised"
        )
    with engine(DonorSharing.TENANT) as running:
        assert outcome_after(running, guarded, MALLORY, ANNA) == "materialised"


def test_the_default_keeps_principals_apart() -> None:
    assert Settings().share_donors is DonorSharing.PRINCIPAL


NAMELESS = (salt_part(None), by_salt(None), by_extra_key(None, None), by_salt_number(None))
NAMED = (
    salt_part("none"),
    salt_part("semblend:ns:no-cache-salt"),
    by_salt("semblend:ns:no-cache-salt"),
    by_extra_key("", None),
    by_salt_number(0),
)


@pytest.mark.parametrize("sharing", list(DonorSharing))
@pytest.mark.parametrize("salt", [*NAMELESS, *NAMED])
def test_on_every_engine_requests_without_a_principal_can_be_kept_out(
    sharing: DonorSharing, salt: str
) -> None:
    settings = Settings(
        embedder=EmbedderKind.NONE,
        allow_uncertified=True,
        share_donors=sharing,
        recompute_policy="none",
    )
    tokens = np.arange(600, dtype=np.int32)
    namespace = Namespace.of(model="m", cache_salt=salt)
    kept_out = sharing is DonorSharing.NAMED and salt in NAMELESS
    with SemBlendPipeline(settings) as pipeline:
        assert pipeline.register_donor("d", tokens, namespace) is not kept_out
        plan = pipeline.plan(np.concatenate((tokens[300:], tokens)), namespace)
        assert bool(plan.spans) is not kept_out
        assert (plan.reason is DeclineReason.INCOMPLETE_NAMESPACE) is kept_out


def test_no_salt_passes_for_another_principal() -> None:
    tenant = Namespace.of(model="m", tenant="acme")
    anna = tenant.for_principal("anna")
    assert anna.key() == tenant.for_principal("anna").key()
    assert tenant.for_principal(None) == tenant
    forged = [salt_part(anna.cache_salt), by_salt(anna.cache_salt), by_extra_key(None, "x")]
    others = [tenant, tenant.for_principal("mallory")]
    others += [tenant.with_parts(cache_salt=salt) for salt in forged]
    others += [tenant.with_parts(cache_salt=salt_part("s")).for_principal("anna")]
    assert anna.key() not in {other.key() for other in others}
    # A namespace that is not known stays unknown.
    assert not Namespace(model="m").for_principal("anna").is_complete


def test_keys_are_principals_unless_they_name_one() -> None:
    ring = KeyRing(KEYS["keys"])
    found = {key: ring.find(key) for key in KEYS["keys"]}
    principals = {key: caller.principal for key, caller in found.items() if caller is not None}
    assert principals[ANNA] == principals[ANNAS_OTHER] == "anna"
    assert principals[MALLORY] not in (None, "anna", MALLORY)
    with pytest.raises(SettingsError, match="principal"):
        KeyRing({ANNA: {"tenant": "acme", "principal": ""}})


@pytest.mark.parametrize("sharing", list(DonorSharing))
def test_a_gateway_asks_for_a_principals_donors_as_its_workers_file_them(
    sharing: DonorSharing,
) -> None:
    settings = Settings(embedder=EmbedderKind.NONE, share_donors=sharing)
    known = Namespace.of(model="m").to_dict()
    for part in ("tenant", "template", "cache_salt"):
        del known[part]

    class Directory:
        def namespace_kinds(self) -> list[dict[str, Any]]:
            layouts = ("layers,2,pages,page_size,kv_heads,head_dim", "segments:x")
            return [{**known, "cache_layout": layout} for layout in layouts]

    placer = Placer(
        directory=Directory(),  # type: ignore[arg-type]
        pool=None,  # type: ignore[arg-type]
        encoder=None,  # type: ignore[arg-type]
        options=None,  # type: ignore[arg-type]
        settings=settings,
        secret=b"",
    )
    ours, vllms = placer._namespaces({}, {}, "acme", "anna")
    alone = sharing is not DonorSharing.TENANT
    assert ours.cache_salt is not None
    assert ours.cache_salt.startswith("principal:") is alone
    # vLLM knows salts only.
    assert vllms.cache_salt == by_salt(None)
