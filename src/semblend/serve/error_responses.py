"""The statuses a route may refuse with, for its OpenAPI description."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from semblend.serve.openai.replies import ErrorReply

_TEXTS: Mapping[int, str] = {
    400: "A field is missing or wrong; `param` names it.",
    401: "Missing or unknown API key.",
    403: "Not allowed.",
    404: "No such model.",
    408: "The body took too long.",
    413: "The body is too large.",
    415: "The content type must be JSON.",
    421: "The Host header names another server.",
    429: "Over this tenant's limits; see Retry-After.",
    500: "The server failed.",
    503: "Full or stopping; see Retry-After.",
    504: "Not finished in time.",
}


def error_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Descriptions of these refusals; of all refusals if none is named."""
    return {
        status: {"model": ErrorReply, "description": _TEXTS[status]}
        for status in statuses or _TEXTS
    }
