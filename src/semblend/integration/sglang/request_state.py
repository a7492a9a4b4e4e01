"""What the backend remembers about one live request: kept on the request, gone with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from semblend.core.outcomes import DeclineReason, Outcome
from semblend.core.plan import Hole, Plan
from semblend.core.tokens import TokenArray

if TYPE_CHECKING:
    import torch

_ATTRIBUTE = "semblend_state"


class Progress(StrEnum):
    """How far a request's reuse has come."""

    NONE = "none"
    OFFERED = "offered"
    """Told to the scheduler; it may or may not admit the request with it."""
    LOADED = "loaded"
    """Spans are in the request's slots; holes are not computed yet."""
    CONFIRMED = "confirmed"
    """Every token of the region is in place."""
    FAILED = "failed"
    """The region was computed exactly instead."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PrivateLoad:
    """The region's slots, which belong to the request alone."""

    plan: Plan
    slots: torch.Tensor
    """int64 [end - exact_tokens]: slot of every token of [exact_tokens, end)."""

    @property
    def region(self) -> Hole:
        """Everything that is not the tree's: [exact_tokens, end)."""
        return Hole(self.plan.exact_tokens, self.plan.end)


@dataclass(slots=True)
class RequestState:
    """One request, from its first match until SGLang drops it."""

    request_id: str
    refusal: str | None = None
    """Why it may neither reuse nor donate, if so (LoRA, multimodal, …)."""
    may_reuse: bool = True
    may_donate: bool = True
    tokens: TokenArray | None = None
    plan: Plan | None = None
    planned_for: tuple[int, int] | None = None
    """Tokens and exact tokens the plan was made for."""
    generation: int = 0
    """The provider's generation then."""
    progress: Progress = Progress.NONE
    load: PrivateLoad | None = None
    tainted: bool = False
    """Whether any of its K/V is approximate: then it is never a donor."""
    donated: bool = False
    losses: int = 0
    """Times a donor turned out to be gone."""
    settled: bool = False
    exact_tokens: int = 0
    reason: DeclineReason | None = None
    detail: str = ""
    notes: dict[str, Any] = field(default_factory=dict)

    def decline(self, reason: DeclineReason, detail: str = "") -> None:
        """Remember why this request is computed."""
        self.reason, self.detail = reason, detail

    def released(self) -> None:
        """Its slots are gone: it was retracted and may come back, or it has ended."""
        self.load = None
        self.plan, self.planned_for = None, None
        self.progress = Progress.NONE

    def report(self, prompt_tokens: int, *, certified: bool) -> dict[str, Any]:
        """What the response says was reused: confirmed tokens, nothing else."""
        confirmed = self.progress is Progress.CONFIRMED and self.load is not None
        plan = self.load.plan if self.load is not None else self.plan
        body: dict[str, Any] = {
            "outcome": self._outcome(confirmed).value,
            "prompt_tokens": prompt_tokens,
            "exact_tokens": self.exact_tokens,
            "reused_tokens": plan.reused_tokens if confirmed and plan else 0,
            "hole_tokens": plan.hole_tokens if confirmed and plan else 0,
            "recomputed_tokens": plan.recomputed_tokens if confirmed and plan else 0,
            "approximate": confirmed,
        }
        if confirmed and plan is not None:
            body |= {"donor_ids": list(plan.donor_ids), "policy": plan.policy}
            body["certified"] = certified
        elif self.reason is not None:
            body["reason"] = self.reason.value
            if self.detail:
                body["detail"] = self.detail
        return body | self.notes

    def _outcome(self, confirmed: bool) -> Outcome:
        if confirmed:
            return Outcome.MATERIALISED
        if self.reason is not None and self.reason.outcome is not Outcome.COLD:
            return self.reason.outcome
        return Outcome.EXACT_PREFIX if self.exact_tokens else Outcome.COLD


Loaded = Mapping[int, tuple[Any, RequestState]]
"""Row of a batch to its request and state; the state's load is set."""


def loads_of(loaded: Loaded) -> list[tuple[int, Any]]:
    """Rows and states whose loads are set."""
    return [(row, state) for row, (_, state) in loaded.items() if state.load is not None]


def state_of(request: Any) -> RequestState:
    """The request's state, made the first time."""
    state: RequestState | None = getattr(request, _ATTRIBUTE, None)
    if state is None:
        from semblend.integration.sglang.support import request_refusal

        hints = _hints(request)
        state = RequestState(
            request_id=str(request.rid),
            refusal=request_refusal(request),
            may_reuse=hints.get("reuse") is not False,
            may_donate=hints.get("donate") is not False,
        )
        setattr(request, _ATTRIBUTE, state)
    return state


def known_state(request: Any) -> RequestState | None:
    """The request's state, if it was ever matched."""
    return getattr(request, _ATTRIBUTE, None)


def _hints(request: Any) -> dict[str, Any]:
    """What the request itself says: sampling_params.custom_params {"semblend": {…}}."""
    given = getattr(request.sampling_params, "custom_params", None)
    hints = given.get("semblend") if isinstance(given, dict) else None
    return hints if isinstance(hints, dict) else {}
