"""What the backend remembers about one live request: kept on the request, gone with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from semblend.core.account import Account, Accounts, Reuse
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

    account: Account
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

    @property
    def request_id(self) -> str:
        """SGLang's id."""
        return self.account.request_id

    def released(self) -> None:
        """Its slots are gone: it was retracted and may come back, or it has ended."""
        self.load = None
        self.plan, self.planned_for = None, None
        self.progress = Progress.NONE

    def report(self, *, certified: bool) -> dict[str, Any]:
        """What the response says was reused: confirmed tokens, nothing else."""
        load = self.load if self.progress is Progress.CONFIRMED else None
        reuse = None if load is None else Reuse.of(load.plan)
        return self.account.report(reuse, approximate=True, certified=certified)


Loaded = Mapping[int, tuple[Any, RequestState]]
"""Row of a batch to its request and state; the state's load is set."""


def loads_of(loaded: Loaded) -> list[tuple[int, Any]]:
    """Rows and states whose loads are set."""
    return [(row, state) for row, (_, state) in loaded.items() if state.load is not None]


def state_of(request: Any, accounts: Accounts) -> RequestState:
    """The request's state, made the first time."""
    state: RequestState | None = getattr(request, _ATTRIBUTE, None)
    if state is None:
        from semblend.integration.sglang.support import request_refusal

        hints = _hints(request)
        state = RequestState(
            account=accounts.open(str(request.rid), prompt_tokens=len(request.origin_input_ids)),
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
