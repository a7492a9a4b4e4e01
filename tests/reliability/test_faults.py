"""The fault mechanism itself: off by default, hidden, checked, repeatable."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from semblend.cli.settings import settings_table_markdown
from semblend.core import faults
from semblend.core.errors import SettingsError
from semblend.core.faults import FaultPoint, InjectedError, fault_point, parse_faults, planted
from semblend.core.settings import Settings

ROOT = Path(__file__).resolve().parents[2]


@fault_point(FaultPoint.PLAN)
def planned() -> str:
    return "planned"


def test_a_point_fails_while_it_is_planted_and_only_then() -> None:
    assert planned() == "planned"
    with planted("plan") as seen, pytest.raises(InjectedError):
        planned()
    assert planned() == "planned"
    assert seen.fired == {FaultPoint.PLAN: 1}


def test_a_fault_after_the_work_is_done_leaves_the_work_done() -> None:
    done: list[int] = []
    late = fault_point(FaultPoint.COPY, after=True)(done.append)
    with planted("copy"), pytest.raises(InjectedError):
        late(1)
    assert done == [1]


def test_rates_and_times_are_kept_and_repeatable() -> None:
    def reaches() -> list[bool]:
        with planted("plan:0.3,copy:1:2", seed=5) as seen:
            return [seen.fires(FaultPoint.PLAN) for _ in range(1000)] + [
                seen.fires(FaultPoint.COPY) for _ in range(5)
            ]

    first = reaches()
    assert first == reaches()
    assert 240 < sum(first[:1000]) < 360
    assert first[1000:] == [True, True, False, False, False]


@pytest.mark.parametrize(
    "wrong", ["nowhere", "plan:2", "plan:-1", "plan:x", "plan:1:0", "plan:1:1:1"]
)
def test_a_setting_that_means_nothing_is_refused_by_name(wrong: str) -> None:
    with pytest.raises(SettingsError, match="fault"):
        parse_faults(wrong)
    with pytest.raises(SettingsError, match="SEMBLEND_FAULTS"):
        Settings.from_env({"SEMBLEND_FAULTS": wrong})


def test_the_setting_is_hidden_and_is_no_unknown_variable() -> None:
    assert "FAULTS" not in settings_table_markdown()
    assert Settings.from_env({"SEMBLEND_FAULTS": "plan:0.5"}).faults == "plan:0.5"


def test_the_setting_plants_faults_in_a_process_of_its_own() -> None:
    """In another process, because what a setting plants stays."""
    code = """
from semblend import Namespace, SemBlendPipeline, Settings
pipeline = SemBlendPipeline(Settings.from_env(embedder="none", allow_uncertified=True))
plan = pipeline.plan(range(500), Namespace.of(model="m"))
assert plan.reason == "internal_error", plan
"""
    environ = {"SEMBLEND_FAULTS": "index_read", "PATH": "/usr/bin"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environ, cwd=ROOT)


def test_nothing_is_planted_by_default() -> None:
    assert faults._planted is None
    assert Settings().faults == ""


def test_every_point_is_reached_somewhere_in_the_source() -> None:
    text = "".join(
        path.read_text(encoding="utf-8")
        for path in (ROOT / "src").rglob("*.py")
        if path.name != "faults.py"
    )
    unused = [
        point.name
        for point in FaultPoint
        if f"FaultPoint.{point.name}" not in text and point is not FaultPoint.CLOCK
    ]
    assert not unused
    assert "clock_jump_s()" in text
