"""A request of SGLang's: kept on its own object, gone with it."""

from __future__ import annotations

from typing import Any

import numpy as np

from semblend.core.account import Accounts
from semblend.core.errors import InvalidTokensError
from semblend.core.namespace import Namespace
from semblend.core.tokens import TokenArray, as_token_array
from semblend.integration.scheduler.request import Arrival, Request
from semblend.integration.sglang.support import request_refusal
from semblend.integration.tree.admitted import Row, State

_ATTRIBUTE = "semblend_state"


def state_of(
    request: Any, accounts: Accounts, namespace: Namespace, *, names_policy: bool = False
) -> State:
    """The request's state, made the first time.

    Without a certificate that settles it, the request may name its policy (`names_policy`).
    """
    state: State | None = known_state(request)
    if state is None:
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
