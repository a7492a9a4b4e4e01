"""Orders and reports in the types vLLM carries between the two sides of a connector."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from semblend.integration.scheduler.orders import StepOrders, WorkerReport
from semblend.integration.vllm.interface import KVConnectorMetadata, KVConnectorWorkerMetadata


@dataclass(slots=True)
class ConnectorMeta(StepOrders, KVConnectorMetadata):
    """One step's orders, from the scheduler to every worker."""


@dataclass(frozen=True, slots=True)
class RankReports(KVConnectorWorkerMetadata):
    """What the ranks did in a step, combined by vLLM."""

    report: WorkerReport

    def aggregate(self, other: Any) -> RankReports:
        """This rank's report and another's."""
        if not isinstance(other, RankReports):  # another connector's: nothing of ours in it
            return self
        return RankReports(self.report + other.report)
