"""`kv_connector_extra_config` and its documents; no vLLM is needed to check them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from semblend.core.architectures import EngineName, models_table
from semblend.core.errors import SettingsError
from semblend.core.settings import EmbedderKind
from semblend.integration.modes import Mode
from semblend.integration.option_values import options_table
from semblend.integration.vllm.options import ConnectorOptions
from semblend.integration.vllm.versions import VERSIONS

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples" / "vllm").glob("*.json"))


def test_every_key_is_documented_as_it_is():
    assert options_table(ConnectorOptions) in (ROOT / "docs" / "vllm.md").read_text(
        encoding="utf-8"
    )


def test_the_table_of_models_is_the_one_that_decides():
    table = models_table(EngineName.VLLM)
    documented = (ROOT / "docs" / "vllm.md").read_text(encoding="utf-8")
    assert table in documented, f"docs/vllm.md, Models:\n{table}"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_a_configuration_the_connector_takes(path):
    config = json.loads(path.read_text(encoding="utf-8"))
    # The first wheel's own path: an example needs no second one.
    assert config["kv_connector_module_path"] == "semblend.integration.vllm.connector_v1"
    assert config["kv_connector"] == "SemBlendConnectorV1"
    options = ConnectorOptions.from_extra_config(config["kv_connector_extra_config"])
    assert options.mode.loads is not ("discovery" in path.stem)


def test_the_charts_values_hold_a_configuration_the_connector_takes():
    values = yaml.safe_load((ROOT / "deploy" / "helm" / "values-vllm.yaml").read_text())
    (model,) = values["servingEngineSpec"]["modelSpec"]
    arguments = model["vllmConfig"]["extraArgs"]
    config = json.loads(arguments[arguments.index("--kv-transfer-config") + 1])
    options = ConnectorOptions.from_extra_config(config["kv_connector_extra_config"])
    assert options.mode is Mode.DISCOVERY_ONLY


def test_the_image_starts_in_discovery_on_a_vllm_that_was_run():
    text = (ROOT / "deploy" / "docker" / "Dockerfile.vllm").read_text(encoding="utf-8")
    config = re.search(r"SEMBLEND_CONFIG=/opt/semblend/(\S+)", text)
    assert config is not None
    options = json.loads((ROOT / config[1]).read_text(encoding="utf-8"))
    assert options["kv_connector_extra_config"]["mode"] == "discovery_only"
    minor = re.search(r"vllm-openai:v(\d+\.\d+)", text)
    assert minor is not None
    assert VERSIONS.judge(minor[1]).verified


def test_the_default_loads_nothing():
    options = ConnectorOptions.from_extra_config(None)
    assert options.mode is Mode.DISCOVERY_ONLY
    settings = options.settings({})
    assert settings.discovery_only
    assert not settings.allow_uncertified
    assert settings.embedder is EmbedderKind.NONE


def test_keys_win_over_variables_and_variables_over_defaults():
    given = {"mode": "segmented_experimental", "min_span_tokens": 48}
    environ = {"SEMBLEND_MIN_SPAN_TOKENS": "99", "SEMBLEND_RECOMPUTE_POLICY": "seams(4)"}
    settings = ConnectorOptions.from_extra_config(given).settings(environ)
    assert settings.min_span_tokens == 48
    assert settings.recompute_policy == "seams(4)"
    assert settings.allow_uncertified


def test_nested_regions_end_on_any_token_unless_somebody_says_otherwise():
    for mode in Mode:
        options = ConnectorOptions.from_extra_config({"mode": mode.value})
        assert options.settings({}).strict_prefix_boundary is not mode.segmented
        told = {"SEMBLEND_STRICT_PREFIX_BOUNDARY": "1"}
        assert options.settings(told).strict_prefix_boundary
        staged = ConnectorOptions.from_extra_config({"mode": mode.value, "execution": "staged"})
        assert staged.settings({}).strict_prefix_boundary


def test_only_experimental_modes_run_uncertified():
    for mode in Mode:
        options = ConnectorOptions.from_extra_config({"mode": mode.value})
        assert options.settings({}).allow_uncertified is mode.value.endswith("experimental")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"mod": "segmented"}, "did you mean mode"),
        ({"mode": "segmentd"}, "mode = 'segmentd'"),
        ({"capture_sample_ratio": 1.5}, "capture_sample_ratio = 1.5"),
        ({"disk_donor_bytes": 1 << 20}, "donor_folder"),
    ],
)
def test_what_cannot_be_taken_is_named(config, message):
    with pytest.raises(SettingsError, match=message):
        ConnectorOptions.from_extra_config(config)


def test_only_known_versions_are_supported():
    assert VERSIONS.judge("0.32.0").verified
    assert VERSIONS.judge("0.30.1").supported
    assert not VERSIONS.judge("0.33.0").supported
    assert not VERSIONS.judge("garbage").supported
