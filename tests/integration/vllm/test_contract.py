"""The installed vLLM still has the interface this adapter was written for."""

from __future__ import annotations

import difflib
import inspect
import json
from pathlib import Path

import pytest
import vllm
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, SupportsHMA

from semblend.integration.vllm.connector_v1 import SemBlendConnectorV1
from semblend.integration.vllm.versions import VERSIONS
from semblend_vllm_connector.connector import SemBlendVllmConnector
from tests.integration.vllm.contract import read_contract

CONTRACTS = Path(__file__).parent / "contracts"


def test_the_installed_versions_contract_has_not_drifted():
    minor = VERSIONS.release_of(vllm.__version__)
    recorded = (CONTRACTS / f"{minor}.json").read_text(encoding="utf-8").splitlines()
    found = json.dumps(read_contract(Path(vllm.__file__).parent), indent=1, sort_keys=True)
    drift = "\n".join(
        difflib.unified_diff(
            recorded, found.splitlines(), f"{minor} as recorded", "as installed", lineterm="", n=1
        )
    )
    assert not drift, f"vLLM's connector contract has changed:\n{drift}"


def test_every_supported_version_has_its_contract_recorded():
    assert sorted(VERSIONS.known) == sorted(path.stem for path in CONTRACTS.glob("*.json"))


@pytest.mark.parametrize("minor", sorted(VERSIONS.known))
def test_what_this_connector_overrides_exists_with_these_parameters(minor):
    """Our methods take what each supported version passes."""
    recorded = json.loads((CONTRACTS / f"{minor}.json").read_text(encoding="utf-8"))
    theirs = {**recorded["SupportsHMA"], **recorded["KVConnectorBase_V1"]}
    abstract = {name for name, text in theirs.items() if "abstractmethod" in text}
    ours = vars(SemBlendConnectorV1)
    assert abstract <= set(ours), f"abstract in {minor} and not implemented"
    for name in set(ours) & set(theirs) - {"__init__"}:
        if isinstance(ours[name], property):
            continue
        signature = inspect.signature(getattr(SemBlendConnectorV1, name))
        expected = theirs[name].split("(", 1)[1].rsplit(")", 1)[0]
        for parameter in signature.parameters.values():
            if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
                continue
            assert parameter.name in expected, f"{minor}: {name}({expected}) has no {parameter}"


def test_nothing_public_of_the_base_class_is_overridden_by_accident():
    known = set(dir(KVConnectorBase_V1)) | set(dir(SupportsHMA))
    added = {
        name for name in vars(SemBlendConnectorV1) if not name.startswith("_") and name not in known
    }
    told_by_our_worker = {
        "bind_model_runner",
        "engine_ready",
        "weights_changed",
        "before_unmapping",
        "kv_of_donor",
    }
    for_experiments = {"rewrite_plan"}
    expected = told_by_our_worker | for_experiments
    assert added - {"get_external_cache_hit_sources"} == expected  # since 0.32


def test_unknown_versions_are_refused():
    assert VERSIONS.judge("0.32.0").verified
    assert VERSIONS.judge("0.32.1+cpu").supported
    assert not VERSIONS.judge("0.33.0").supported
    assert not VERSIONS.judge("0.29.0").supported
    assert not VERSIONS.judge("1.0.0").supported
    assert not VERSIONS.judge("0.320.0").supported


def test_both_public_names_are_the_connector():
    assert SemBlendVllmConnector is SemBlendConnectorV1
