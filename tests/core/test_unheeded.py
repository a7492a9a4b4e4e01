"""A setting that does nothing where it is set is said at start, with the places where it acts."""

from __future__ import annotations

import pytest

from semblend.core.settings import EmbedderKind, Settings, variable
from semblend.core.unheeded import BY_MEANING, unheeded
from semblend.integration.sglang.options import BackendOptions
from semblend.integration.trtllm.options import ConnectorOptions as TrtllmOptions
from semblend.integration.vllm.options import ConnectorOptions

GIVEN = {
    "SEMBLEND_EMBEDDER": "minilm",
    "SEMBLEND_EMBEDDER_MODEL": "some/model",
    "SEMBLEND_MIN_SIMILARITY": "0.70",
    "SEMBLEND_FUZZY_CHUNKS": "1",
}


@pytest.mark.parametrize("name", GIVEN)
@pytest.mark.parametrize(
    ("options", "here"),
    [
        (BackendOptions(), "SGLang"),
        (TrtllmOptions(), "TensorRT-LLM"),
        (ConnectorOptions(), "vLLM with provider local"),
    ],
    ids=["sglang", "trtllm", "vllm"],
)
def test_each_setting_of_meaning_is_named_where_it_has_no_effect(options, here, name):
    said = options.unheeded({name: GIVEN[name]})
    assert said.startswith(f"no effect here: {name}. {here} finds donors by tokens only")
    assert "find_donor" in said
    assert "provider: semblend" in said
    assert "\n" not in said


@pytest.mark.parametrize("options", [BackendOptions(), TrtllmOptions(), ConnectorOptions()])
def test_what_is_said_is_so(options):
    settings = options.settings(GIVEN)
    assert settings.embedder is EmbedderKind.NONE
    assert not settings.fuzzy_chunks


def test_nothing_is_said_where_they_act():
    options = ConnectorOptions.from_extra_config({"provider": "semblend", "min_similarity": 0.7})
    assert options.unheeded(GIVEN) == ""
    settings = options.settings(GIVEN)
    assert (settings.embedder, settings.fuzzy_chunks) == (EmbedderKind.MINILM, True)


def test_a_key_of_vllms_own_configuration_is_named_like_a_variable():
    options = ConnectorOptions.from_extra_config({"min_similarity": 0.7, "embedder_type": "static"})
    said = options.unheeded({})
    assert "kv_connector_extra_config.min_similarity" in said
    assert "kv_connector_extra_config.embedder_type" in said


@pytest.mark.parametrize(
    "environ", [{}, {"SEMBLEND_EMBEDDER": "none"}, {"SEMBLEND_FUZZY_CHUNKS": "0"}, {"HOME": "/"}]
)
def test_whoever_asks_for_what_happens_anyway_is_not_warned(environ):
    assert unheeded(environ, here="it") == ""


def test_a_value_that_cannot_be_stops_no_engine_that_ignores_it():
    assert "SEMBLEND_EMBEDDER" in BackendOptions().unheeded({"SEMBLEND_EMBEDDER": "nonsense"})


def test_the_settings_table_says_where_each_acts():
    for name in Settings.shown():
        assert ("Used in" in Settings.documented(name)) is (name in BY_MEANING), variable(name)
