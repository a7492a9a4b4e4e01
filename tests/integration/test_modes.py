"""A mode means the same in every engine that has it."""

from __future__ import annotations

import pytest

from semblend.core.errors import SettingsError
from semblend.integration.modes import Mode
from semblend.integration.options import AdapterOptions
from semblend.integration.sglang.options import BackendOptions
from semblend.integration.trtllm.options import ConnectorOptions as TrtllmOptions
from semblend.integration.vllm.options import ConnectorOptions as VllmOptions

# Whether it loads at all, with holes between, and without a certificate.
MEANING = {
    "discovery_only": (False, False, False),
    "exact_prefix": (True, False, False),
    "request_only_experimental": (True, False, True),
    "segmented_experimental": (True, True, True),
    "segmented": (True, True, False),
}
ENGINES = {"vllm": VllmOptions, "sglang": BackendOptions, "trtllm": TrtllmOptions}


@pytest.mark.parametrize("kind", ENGINES.values(), ids=ENGINES)
def test_words_mean_the_same_and_become_the_same_settings(kind: type[AdapterOptions]):
    for mode in kind.MODES:
        assert (mode.loads, mode.segmented, mode.uncertified) == MEANING[mode.value]
        options = kind.from_mapping({"mode": mode.value, "min_span_tokens": 48, "tenant": "acme"})
        settings = options.settings({"SEMBLEND_MIN_SPAN_TOKENS": "99"})
        assert settings.discovery_only is not mode.loads
        assert settings.allow_uncertified is mode.uncertified
        assert (settings.min_span_tokens, settings.donor_tenant) == (48, "acme")
        assert options.given() == {
            "mode": mode.value,
            "min_span_tokens": 48,
            "tenant": "acme",
        }


@pytest.mark.parametrize("kind", ENGINES.values(), ids=ENGINES)
def test_a_mode_the_engine_does_not_have_is_refused_with_those_it_has(kind):
    for mode in set(Mode) - set(kind.MODES):
        with pytest.raises(SettingsError, match=f"one of {', '.join(kind.MODES)} expected"):
            kind.from_mapping({"mode": mode.value})


@pytest.mark.parametrize("kind", ENGINES.values(), ids=ENGINES)
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", "expected a JSON object, got list"),
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON: nested too deeply"),
        ('{"mod": "segmented"}', "unknown key 'mod'; did you mean mode"),
        ('{"mode": "everything"}', "mode = 'everything'"),
    ],
)
def test_what_cannot_be_taken_is_named_with_where_it_was_given(kind, text, message):
    with pytest.raises(SettingsError, match=message) as error:
        kind.from_json(text)
    assert str(error.value).startswith(kind.SOURCE)
