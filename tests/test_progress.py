"""Long work says how far it is and how long it will take, with and without a terminal."""

from __future__ import annotations

import io

from rich.console import Console

from semblend.terminal.progress import advancing, one_total


def told(*steps: tuple[float, int], total: int = 100) -> list[str]:
    clock = iter([0.0, *(moment for moment, _ in steps)])
    text = io.StringIO()
    console = Console(file=text, width=80)
    with one_total("seed 1", total, console, every_s=10, clock=lambda: next(clock)) as tell:
        for _, done in steps:
            tell(done)
    return text.getvalue().splitlines()


def test_without_a_terminal_a_line_now_and_then_has_total_and_time_left():
    assert told((1, 0), (5, 10), (12, 20), (13, 21), (30, 50), (60, 100)) == [
        "seed 1: 20 of 100 (20%), 48 s left",
        "seed 1: 50 of 100 (50%), 30 s left",
        "seed 1: 100 of 100 (100%), took 1 min",
    ]


def test_the_end_is_said_once():
    assert told((1, 0), (60, 100), (61, 100)) == ["seed 1: 100 of 100 (100%), took 1 min"]


def test_what_an_earlier_run_did_does_not_make_this_one_look_fast():
    (line, *_) = told((0, 80), (20, 90))
    assert line == "seed 1: 90 of 100 (90%), 20 s left"


def test_on_a_terminal_there_is_one_bar():
    text = io.StringIO()
    console = Console(file=text, width=80, force_terminal=True)
    with one_total("seed 1", 10, console) as tell:
        tell(10)
    assert "10/10" in text.getvalue()


def test_parts_of_one_work_add_up_to_one_total():
    text = io.StringIO()
    with advancing("bench", 10, Console(file=text, width=80)) as advance:
        for units in (3, 3, 4):
            advance(units)
    (line,) = text.getvalue().splitlines()
    assert line.startswith("bench: 10 of 10 (100%), took ")
