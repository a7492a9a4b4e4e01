"""What the leader tells every rank in a step, as plain values; TensorRT-LLM pickles it."""

from __future__ import annotations

from dataclasses import dataclass, field

from semblend.integration.scheduler.orders import StepOrders


@dataclass(slots=True)
class ConnectorMeta(StepOrders):
    """One step's orders, the same on every rank."""

    parked: set[str] = field(default_factory=set)
    """Loads whose requests wait for them, instead of holding up the step."""
    private: set[str] = field(default_factory=set)
    """Loads of ladders: if one fails, its client throws the answer away."""


def name_of(number: int, attempt: int) -> str:
    """A request's name in orders and answers: the engine may ask about one number again."""
    return str(number) if attempt == 1 else f"{number}~{attempt}"


def number_of(request_id: str) -> int:
    """The engine's number for a request of this name."""
    return int(request_id.partition("~")[0])
