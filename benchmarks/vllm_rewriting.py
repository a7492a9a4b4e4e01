"""The connector with editable plans, for experiments that need a plan no planner makes."""

from __future__ import annotations

from semblend.core.plan import Plan
from semblend.core.tokens import TokenArray
from semblend.integration.scheduler.engine_planner import PlanRewriter
from semblend.integration.vllm.connector_v1 import SemBlendConnectorV1


class RewritingConnector(SemBlendConnectorV1):
    """Passes every plan through `rewriting` while that is set."""

    rewriting: PlanRewriter | None = None

    def rewrite_plan(self, plan: Plan, tokens: TokenArray) -> Plan:
        """The plan to carry out."""
        return plan if self.rewriting is None else self.rewriting(plan, tokens)
