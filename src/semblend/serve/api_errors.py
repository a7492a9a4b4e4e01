"""Errors in OpenAI's format: a status, a helpful message, and the field it is about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi.responses import JSONResponse

from semblend.core.errors import RequestError, RequestFieldError

_KINDS: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    421: "invalid_request_error",
    429: "rate_limit_error",
    499: "cancelled_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class ApiError(RequestError):
    """A refusal with an HTTP status; the message names the field and how to fix it."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = printable(message)
        self.param = None if param is None else printable(param)
        self.code = code
        self.retry_after_s = retry_after_s

    def body(self) -> dict[str, Any]:
        return {
            "error": {
                "message": self.message,
                "type": _KINDS.get(self.status, "server_error"),
                "param": self.param,
                "code": self.code,
            }
        }

    def headers(self) -> dict[str, str]:
        headers: dict[str, str] = {}
        if self.retry_after_s is not None:
            headers["retry-after"] = str(self.retry_after_s)
        if self.status == 401:
            headers["www-authenticate"] = 'Bearer realm="semblend"'
        return headers

    def response(self) -> JSONResponse:
        return JSONResponse(self.body(), status_code=self.status, headers=self.headers())


def printable(text: str) -> str:
    """Make text sendable: JSON may name a field with half of a surrogate pair."""
    return text.encode("utf-8", "backslashreplace").decode()


def internal_error() -> ApiError:
    """What a caller is told if the server is at fault; reveals nothing internal."""
    return ApiError(
        500,
        "the server failed to answer this request; look up its x-request-id in the server log",
        code="internal_error",
    )


def from_validation(errors: Sequence[Mapping[str, Any]]) -> ApiError:
    """The first problem of a body, in plain words and without quoting its contents."""
    first = _most_telling(errors)
    location = [part for part in first["loc"] if part not in {"body", "query", "path"}]
    kind = str(first["type"])
    if kind == "json_invalid":
        return ApiError(400, f"the body is not valid JSON: {_reason(first)}", code="invalid_json")
    param = _path(location)
    if kind == "missing":
        message = f"{param or 'body'}: this field is required"
    elif kind == "extra_forbidden":
        message = f"{param}: unknown field"
    elif kind == "value_error" and not location:
        # Rules over several fields name the field themselves.
        message = str(first["msg"]).removeprefix("Value error, ")
        raised = first.get("ctx", {}).get("error")
        param = raised.field if isinstance(raised, RequestFieldError) else ""
    else:
        message = f"{param or 'body'}: {_plain(str(first['msg']))}"
    return ApiError(400, message, param=param or None, code="invalid_value")


def _most_telling(errors: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Of a union's failures, the one that got furthest into the user's input."""
    if not errors:
        return {"type": "unknown", "loc": (), "msg": "malformed request"}
    field = tuple(errors[0]["loc"][:-1])
    return max((e for e in errors if tuple(e["loc"][: len(field)]) == field), key=_insight)


def _insight(error: Mapping[str, Any]) -> tuple[int, bool]:
    """Depth first; at equal depth, a wrong value says more than a wrong type."""
    return len(error["loc"]), not str(error["type"]).endswith("_type")


def _path(location: Sequence[Any]) -> str:
    """A field's path as a user would write it: messages[0].content."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif not _is_union_branch(str(part)):
            path += f".{part}" if path else str(part)
    return path[:200]


def _is_union_branch(part: str) -> bool:
    """Pydantic names the branch of a union it tried; users never wrote that."""
    return part in {"str", "int"} or part.startswith(("list[", "constrained-"))


def _plain(message: str) -> str:
    message = message.removeprefix("Value error, ")
    return message[:1].lower() + message[1:]


def _reason(error: Mapping[str, Any]) -> str:
    context = error.get("ctx", {})
    return str(context.get("error", "syntax error")) if isinstance(context, Mapping) else "syntax"
