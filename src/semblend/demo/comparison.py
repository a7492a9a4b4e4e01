"""What the demo compares: a scenario's answers, cold and warm."""

from __future__ import annotations

from dataclasses import dataclass

from semblend.demo.scenarios import Scenario
from semblend.engine.api import RequestReport


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoAnswer:
    """The engine's answer, and where the K/V of its prompt came from."""

    text: str
    report: RequestReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One scenario, cold and warm."""

    scenario: Scenario
    cold: DemoAnswer
    warm: DemoAnswer

    @property
    def ratio(self) -> float:
        """Cold time to first token divided by warm."""
        return self.cold.report.ttft_ms / self.warm.report.ttft_ms

    @property
    def agreement(self) -> str:
        """Whether the warm answer is cold's, a different one, or the donor's fact."""
        if self.warm.text == self.cold.text:
            return "same"
        if self.scenario.leaked is not None and self.scenario.leaked in self.warm.text:
            return "donor's fact"
        return "differs"
