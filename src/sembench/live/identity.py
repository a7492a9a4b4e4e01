"""Names sent with a request, so that the engine's own records can be joined to it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sembench.ids import stable_id

ROUTE_HEADERS = ("x-semantic-route", "x-gateway-route", "x-route")
WORKER_HEADERS = ("x-worker-id", "x-dynamo-worker-instance-id")
_OURS = re.compile(r"sembench-(?:cold|warm|single)-\d{6}-[\w.]+-[0-9a-f]{16}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestName:
    """Identifies a request of a run; equal parts give equal ids."""

    run_id: str
    arm: str
    item_id: str
    role: str
    """``donor0``, ``recipient``, ``repeat`` or ``warmup``."""
    position: int

    def __str__(self) -> str:
        digest = stable_id(self.run_id, self.arm, self.item_id, self.role, str(self.position))
        return f"sembench-{self.arm}-{self.position:06d}-{self.role}-{digest}"


def our_id_in(engine_request_id: str) -> str | None:
    """Our request id inside the engine's, which may add a prefix and a suffix."""
    found = _OURS.search(engine_request_id)
    return found.group() if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestIdentity:
    """The caller's identity, sent in the headers that gateways use to separate tenants."""

    tenant: str = ""
    template: str = ""
    tokenizer: str = ""
    api_key: str = ""

    def headers(self, request_id: str) -> dict[str, str]:
        headers = {"x-request-id": request_id}
        if self.tenant:
            headers["x-tenant-id"] = self.tenant
        if self.tokenizer:
            headers["x-tokenizer-id"] = self.tokenizer
        if self.template:
            headers["x-chat-template-id"] = self.template
        if self.api_key:
            headers["authorization"] = f"Bearer {self.api_key}"
        return headers
