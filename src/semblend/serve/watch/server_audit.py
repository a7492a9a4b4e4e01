"""The server's audit stream: one line per request, metadata only, for `semblend report`."""

from __future__ import annotations

import logging

from semblend.engine.api import RequestReport
from semblend.integration.auditing.audit_stream import AuditStream
from semblend.serve.auth import Pseudonyms
from semblend.serve.options import ServeOptions

logger = logging.getLogger("semblend.serve")


class ServerAudit:
    """Records how requests ended. Tenants and donors appear under their log pseudonyms."""

    def __init__(self, options: ServeOptions, names: Pseudonyms) -> None:
        self._names = names
        self._stream = AuditStream(
            engine="semblend",
            logger=logger,
            path=options.audit_path,
            max_bytes=options.audit_max_bytes,
            files=options.audit_files,
        )

    @classmethod
    def start_if_wanted(cls, options: ServeOptions, names: Pseudonyms) -> ServerAudit | None:
        """None if no file was configured."""
        return None if options.audit_path is None else cls(options, names)

    def settled(self, report: RequestReport, *, tenant: str | None) -> None:
        """Record the end of one request."""
        cold = report.cost.cold
        computed_cold = cold > 0 and not report.reused_tokens and report.prefill_ms > 0
        found = sum(end - start for start, end in report.found)
        self._stream.event(
            "request_settled",
            report.request_id,
            outcome=report.outcome.value,
            settled_reason=None if report.reason is None else report.reason.value,
            prompt_tokens=report.prompt_tokens,
            exact_tokens=report.exact_tokens,
            reused_tokens=report.reused_tokens,
            reusable_tokens=found,
            recomputed_tokens=report.recomputed_tokens,
            tokens_by_donor={
                self._names.donor(tenant, donor_id): tokens
                for donor_id, tokens in report.tokens_by_donor
            },
            cold_units=cold,
            saved_units=report.cost.saved if found or report.reused_tokens else 0.0,
            seconds_per_unit=report.prefill_ms / 1e3 / cold if computed_cold else None,
            tenant=self._names.tenant(tenant),
            ranks=1,
        )

    def close(self) -> None:
        self._stream.close()
