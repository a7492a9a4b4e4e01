"""What the backend says: log lines in the public form, and the audit stream beside them.

Both come from one call, so they cannot disagree. Lines that begin with [FUZZY] are the
ones that log collectors for SGLang already read.
"""

from __future__ import annotations

import logging
from typing import Any

from semblend.core.plan import Plan
from semblend.integration.auditing.audit_stream import AuditStream
from semblend.integration.sglang.options import BackendOptions

ENGINE = "sglang"
"""Its name in records."""
logger = logging.getLogger("semblend.sglang")


class BackendLog(AuditStream):
    """Says what happened, once, in both forms."""

    def __init__(self, options: BackendOptions) -> None:
        super().__init__(engine=ENGINE, logger=logger, **options.audit)

    def donor_registered(
        self, request_id: str, *, donor_id: str, namespace: str, tokens: int, blocks: int = 0
    ) -> None:
        """A prompt computed exactly may be found from now on."""
        logger.info("[FUZZY] register_donor_async: ok request_id=%s tokens=%d", request_id, tokens)
        self.event(
            "donor_registered", request_id, donor_id=donor_id, namespace=namespace, tokens=tokens
        )

    def advertised(self, event: str, request_id: str, plan: Plan, *, standing: str) -> None:
        """The scheduler was told that this prompt's region can be supplied."""
        # Token-identical spans: the cosine of what is copied with what was asked is 1.
        logger.info(
            "[FUZZY RADIX] Fuzzy match success: request_id=%s cached=%d quality_cosine=1.0",
            request_id,
            plan.reused_tokens,
        )
        super().advertised(event, request_id, plan, standing=standing)

    def placed(self, request_id: str, plan: Plan) -> None:
        """Every token of the region is in place, and the request's account says so."""
        for span in plan.copies:
            logger.info(
                "[FUZZY RADIX] segmented prefill realized donor phase: request_id=%s donor_id=%s "
                "donor_tokens=%d target=[%d,%d) direct_paged_kv=True",
                request_id,
                span.donor_id,
                span.length,
                span.target_start,
                span.target_end,
            )
        logger.info(
            "[FUZZY] Realized %d fuzzy tokens request_id=%s", plan.reused_tokens, request_id
        )

    def declined(self, event: str, request_id: str, *, reason: str, **fields: Any) -> None:
        """A plan is not carried out; the prompt is computed."""
        logger.info(
            "[FUZZY RADIX] declined request_id=%s reason=%s detail=%r",
            request_id,
            reason,
            fields.get("detail", ""),
        )
        self.event(event, request_id, declined_reason=reason, **fields)

    def failed(self, request_id: str, *, reason: str, detail: str, blocks: int) -> None:
        """A load or a pass failed; its tokens, a slot each, are computed exactly."""
        logger.warning(
            "[FUZZY RADIX] declined request_id=%s reason=%s detail=%r; computed exactly instead",
            request_id,
            reason,
            detail,
        )
        self.event(
            "runtime_materialization_failed_loud",
            request_id,
            reason=reason,
            detail=detail,
            tokens=blocks,
        )
