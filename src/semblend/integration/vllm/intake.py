"""What a request is to this connector when it arrives."""

from __future__ import annotations

from typing import Any

from semblend.core.account import Accounts
from semblend.core.tokens import as_token_array
from semblend.integration.ladder import split_salt
from semblend.integration.vllm import namespaces
from semblend.integration.vllm.metadata import LoadCommand
from semblend.integration.vllm.modes import Execution, ReuseRequests
from semblend.integration.vllm.request_state import RequestState
from semblend.integration.vllm.setup import SchedulerSetup
from semblend.integration.vllm.support import request_refusal


def describe(request: Any, setup: SchedulerSetup, accounts: Accounts) -> RequestState:
    """What the scheduler side remembers of a new request."""
    options = setup.options
    user_salt, ladder_id = request.cache_salt, None
    if options.mode.segmented and options.execution is Execution.STAGED:
        user_salt, ladder_id = split_salt(request.cache_salt)
    hints = _hints(request)
    wanted = hints.get("reuse")
    policy = hints.get("policy")
    tokens = as_token_array(request.prompt_token_ids or [])
    return RequestState(
        request=request,
        tokens=tokens,
        namespace=namespaces.of_request(setup.namespace, user_salt),
        account=accounts.open(str(request.request_id), prompt_tokens=len(tokens)),
        ladder_id=ladder_id,
        refusal=request_refusal(request),
        may_reuse=wanted is True if options.reuse is ReuseRequests.OPT_IN else wanted is not False,
        wants_capture=hints.get("capture"),
        policy=policy if isinstance(policy, str) and options.mode.uncertified else None,
    )


def impossible_load(state: RequestState, block_ids: list[int], external_tokens: int) -> LoadCommand:
    """A load that fails on purpose: the engine waits for tokens that nobody claimed.

    Blocks in front of them may be shared with other requests and are never reported.
    """
    return LoadCommand(
        request_id=state.request_id,
        block_ids=tuple(block_ids),
        tokens=state.tokens,
        start=state.exact_tokens,
        end=state.exact_tokens + external_tokens,
        copies=(),
        holes=(),
        refused="tokens were allocated that were not claimed",
    )


def _hints(request: Any) -> dict[str, Any]:
    """What the request says to SemBlend: kv_transfer_params["semblend"], if it is a mapping."""
    hints = (request.kv_transfer_params or {}).get("semblend")
    return hints if isinstance(hints, dict) else {}
