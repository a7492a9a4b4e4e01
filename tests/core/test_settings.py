"""Settings come from env, mapping or file, and bad ones are named."""

import logging

import pytest

from semblend.core.errors import SettingsError
from semblend.core.settings import EmbedderKind, Settings, variable

SEED_DEFAULTS = {
    "SEMBLEND_ENABLED": True,
    "SEMBLEND_MIN_SIMILARITY": 0.60,
    "SEMBLEND_EMBEDDER": EmbedderKind.MINILM,
    "SEMBLEND_FUZZY_CHUNKS": False,
    "SEMBLEND_DISCOVERY_ONLY": False,
    "SEMBLEND_STRICT_PREFIX_BOUNDARY": True,
    "SEMBLEND_EXACT_MATERIALIZATION_ONLY": True,
}


@pytest.mark.parametrize(("name", "default"), SEED_DEFAULTS.items())
def test_documented_variables_exist_with_their_documented_defaults(name, default):
    field = name.removeprefix("SEMBLEND_").lower()
    assert variable(field) == name
    assert getattr(Settings(), field) == default


@pytest.mark.parametrize("kind", ["minilm", "static", "jaccard", "onnx_gpu", "none"])
def test_every_documented_embedder_is_accepted(kind):
    assert Settings.from_env({"SEMBLEND_EMBEDDER": kind}).embedder.value == kind


def test_environment_mapping_and_file_agree(tmp_path):
    from_env = Settings.from_env({"SEMBLEND_MIN_REUSE_RATIO": "0.25", "SEMBLEND_ENABLED": "0"})
    from_mapping = Settings.from_mapping({"min_reuse_ratio": 0.25, "enabled": False})
    toml = tmp_path / "s.toml"
    toml.write_text("min_reuse_ratio = 0.25\nenabled = false\n")
    json = tmp_path / "s.json"
    json.write_text('{"min_reuse_ratio": 0.25, "enabled": false}')
    assert from_env == from_mapping == Settings.from_file(toml) == Settings.from_file(json)


def test_flags_win_over_the_environment():
    assert Settings.from_env({"SEMBLEND_ENABLED": "1"}, enabled=False).enabled is False


def test_an_unknown_variable_warns_with_the_nearest_real_one(caplog):
    with caplog.at_level(logging.WARNING, logger="semblend"):
        Settings.from_env({"SEMBLEND_MIN_SIMILARTY": "0.5", "OTHER": "x"})
    (record,) = caplog.records
    assert "SEMBLEND_MIN_SIMILARTY; did you mean SEMBLEND_MIN_SIMILARITY?" in record.getMessage()


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({"SEMBLEND_MIN_SIMILARITY": "1.5"}, "SEMBLEND_MIN_SIMILARITY = '1.5'"),
        ({"SEMBLEND_ENABLED": "perhaps"}, "SEMBLEND_ENABLED = 'perhaps'"),
        ({"SEMBLEND_EMBEDDER": "bert"}, "SEMBLEND_EMBEDDER = 'bert'"),
        ({"SEMBLEND_MAX_DONOR_BYTES": "12"}, "SEMBLEND_MAX_DONOR_BYTES = '12'"),
        (
            {"SEMBLEND_MIN_SIMILARITY": "1.5", "SEMBLEND_EMBEDDER": "bert"},
            "; SEMBLEND_EMBEDDER = 'bert'|; SEMBLEND_MIN_SIMILARITY = '1.5'",
        ),
    ],
)
def test_a_bad_value_is_an_error_that_names_the_variable(environ, named):
    with pytest.raises(SettingsError, match=named):
        Settings.from_env(environ)


def test_an_unknown_field_names_the_nearest_one():
    with pytest.raises(SettingsError, match="did you mean min_reuse_ratio"):
        Settings.from_mapping({"min_reuse": 0.5})


@pytest.mark.parametrize("content", ["{", "[1, 2]", '{"enabled": "maybe"}'])
def test_a_broken_file_is_a_settings_error(tmp_path, content):
    path = tmp_path / "s.json"
    path.write_text(content)
    with pytest.raises(SettingsError):
        Settings.from_file(path)


def test_a_missing_file_is_a_settings_error(tmp_path):
    with pytest.raises(SettingsError, match="absent"):
        Settings.from_file(tmp_path / "absent.json")


def test_the_secret_is_never_shown():
    assert "hush" not in repr(Settings(namespace_secret="hush"))
