"""A request of SGLang's: kept on its own object, gone with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from semblend.core.account import Accounts
from semblend.core.errors import InvalidTokensError
from semblend.core.namespace import Namespace
from semblend.core.plan import Hole, Plan
from semblend.core.tokens import TokenArray, as_token_array
from semblend.integration.scheduler.request import Arrival, Request

if TYPE_CHECKING:
    import torch

    from semblend.integration.sglang.tree_chains import Following

_ATTRIBUTE = "semblend_state"


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


@dataclass(slots=True, eq=False)
class Row:
    """What is matched for a request, and where its K/V is."""

    tokens: TokenArray
    """What the scheduler last matched: the prompt and, after a retraction, what was generated."""
    load: PrivateLoad | None = None
    losses: int = 0
    """Times a donor turned out to be gone."""
    donated: bool = False
    following: Following | None = None
    """What it takes from the conversation it continues."""


State: TypeAlias = Request[Row]
Loaded: TypeAlias = Mapping[int, tuple[Any, State]]
"""Row of a batch to its request and state; the state's load is set."""


def loads_of(loaded: Loaded) -> list[tuple[int, State, PrivateLoad]]:
    """Rows and states whose loads are set."""
    found = ((row, state, state.handle.load) for row, (_, state) in loaded.items())
    return [(row, state, load) for row, state, load in found if load is not None]


def state_of(
    request: Any, accounts: Accounts, namespace: Namespace, *, names_policy: bool = False
) -> State:
    """The request's state, made the first time.

    Without a certificate that settles it, the request may name its policy (`names_policy`).
    """
    state: State | None = known_state(request)
    if state is None:
        from semblend.integration.sglang.support import request_refusal

        hints = _hints(request)
        prompt, policy = _prompt_of(request), hints.get("policy")
        arrival = Arrival(
            request_id=str(request.rid),
            handle=Row(tokens=prompt),
            tokens=prompt,
            namespace=namespace,
            refusal=request_refusal(request),
            may_reuse=hints.get("reuse") is not False,
            wants_capture=None if hints.get("donate") is not False else False,
            policy=policy if names_policy and isinstance(policy, str) else None,
        )
        size = len(request.origin_input_ids)
        state = Request(arrival, accounts.open(arrival.request_id, prompt_tokens=size))
        setattr(request, _ATTRIBUTE, state)
    return state


def known_state(request: Any) -> State | None:
    """The request's state, if it was ever matched."""
    return getattr(request, _ATTRIBUTE, None)


def released(state: State) -> None:
    """Its slots are gone: it was retracted and may come back, or was not admitted after all."""
    state.handle.load = state.handle.following = state.continuation = None
    state.account.continued_tokens = 0
    state.released()


def computed_exactly(state: State) -> None:
    """A load came to nothing. SGLang was told that this request's K/V never enters its tree."""
    state.continuation = None
    state.failed()
    state.tainted = True


def _prompt_of(request: Any) -> TokenArray:
    try:
        return as_token_array(request.origin_input_ids)
    except InvalidTokensError:  # it is refused, or declined when it is planned
        return np.empty(0, dtype=np.int32)


def _hints(request: Any) -> dict[str, Any]:
    """What the request itself says: sampling_params.custom_params {"semblend": {…}}."""
    given = getattr(request.sampling_params, "custom_params", None)
    hints = given.get("semblend") if isinstance(given, dict) else None
    return hints if isinstance(hints, dict) else {}
