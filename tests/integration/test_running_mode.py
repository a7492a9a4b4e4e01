"""One line at start says which mode runs, why, and what to do next."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from semblend.core.settings import Settings
from semblend.integration.modes import Mode
from semblend.integration.running_mode import RunningMode
from semblend.integration.vllm.options import ConnectorOptions
from semblend.planning.certificates import Certificate, Standing

SETTINGS = Settings()
UNTIL = (datetime.now(UTC) + timedelta(days=9)).isoformat()
CERTIFIED = Standing(
    certificate=Certificate(
        model="m",
        fingerprint="f",
        dtype="float32",
        policy="edit_safe",
        bound={},
        figures={},
        data={},
        versions={},
        created=UNTIL,
        expires=UNTIL,
    )
)
MISSING = Standing(detail="this model has no quality certificate")


def running(mode: Mode, *, given: bool = True, **values) -> RunningMode:
    values = {"settings": SETTINGS, "standing": MISSING, "model": "org/model", **values}
    options = ConnectorOptions.from_mapping({"mode": mode.value} if given else {})
    return RunningMode.of(options, **values)


def test_the_default_mode_says_that_it_only_finds_and_what_to_do_next():
    line = str(running(Mode.DISCOVERY_ONLY, given=False))
    assert line.startswith("SemBlend runs as discovery_only: no mode was given.")
    assert "found and counted" in line
    assert "semblend certify --model org/model" in line
    assert "segmented_experimental" in line
    assert "\n" not in line


def test_segmented_without_a_certificate_warns_and_names_the_reason():
    found = running(Mode.SEGMENTED)
    assert found.runs == "discovery_only"
    assert found.level == logging.WARNING
    assert "this model has no quality certificate" in str(found)
    assert "semblend certify" in str(found)


def test_a_certified_mode_is_not_called_experimental_and_leaves_nothing_to_do():
    found = running(Mode.SEGMENTED, standing=CERTIFIED)
    assert (found.runs, found.level, found.next_step) == ("segmented", logging.INFO, "")
    assert "experiment" not in str(found)
    assert UNTIL in str(found)


def test_an_experimental_mode_says_so_and_how_to_leave_it():
    line = str(running(Mode.SEGMENTED_EXPERIMENTAL))
    assert "runs as segmented_experimental" in line
    assert "without a certificate" in line
    assert "then use mode segmented" in line


@pytest.mark.parametrize(
    ("values", "runs", "said"),
    [
        ({"settings": replace_settings}, runs, said)
        for replace_settings, runs, said in (
            (Settings(enabled=False), "off", "SEMBLEND_ENABLED"),
            (Settings(discovery_only=True), "discovery_only", "SEMBLEND_DISCOVERY_ONLY"),
        )
    ]
    + [({"objection": "a feature nobody proved"}, "discovery_only", "a feature nobody proved")],
)
def test_whatever_overrules_a_mode_is_named(values, runs, said):
    found = running(Mode.SEGMENTED, **{"standing": CERTIFIED, **values})
    assert found.runs == runs
    assert said in str(found)
    assert found.level == logging.WARNING


def test_where_exact_prefixes_need_no_certificate_they_are_said_to_be_loaded():
    found = running(Mode.SEGMENTED, prefixes=True)
    assert found.runs == "exact_prefix"
    assert "semblend certify" in found.next_step
    assert replace(found, next_step="").level == logging.WARNING
