"""The statuses a route may refuse with, as its OpenAPI description lists them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from semblend.serve.replies import ErrorReply

_TEXTS: Mapping[int, str] = {
    400: "A field is missing or wrong; `param` names it.",
    401: "An API key is needed.",
    403: "Not allowed here.",
    404: "No such model.",
    408: "The body took too long.",
    413: "The body is too large.",
    415: "JSON is expected.",
    421: "Not addressed to this server.",
    429: "Above this tenant's limits; see Retry-After.",
    500: "The server failed.",
    503: "Full or stopping; see Retry-After.",
    504: "Not finished in time.",
}


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Descriptions of these refusals; of all there are without any."""
    return {
        status: {"model": ErrorReply, "description": _TEXTS[status]}
        for status in statuses or _TEXTS
    }
