"""The provider: who has read these tokens before, and what of it this engine may be given.

It knows nothing of TensorRT-LLM and can be used alone; the connector's scheduler side
asks it from the executor's loop, so nothing here embeds text or waits.
"""

from __future__ import annotations

from collections.abc import Callable

from semblend.core.account import Account
from semblend.core.namespace import Namespace
from semblend.core.plan import Plan
from semblend.core.settings import Settings
from semblend.core.tokens import TokenArray, as_token_array
from semblend.integration.isolation import by_salt
from semblend.integration.modes import Mode
from semblend.integration.scheduler.planner import Planner
from semblend.integration.trtllm import namespaces
from semblend.integration.trtllm.semantic_plan import (
    SemanticKvLookupRequest,
    SemanticKvLookupResult,
    discovered,
)
from semblend.pipeline import SemBlendPipeline
from semblend.planning.boundaries import Boundaries
from semblend.planning.certificates import Standing
from semblend.planning.cost import CostModel


class SemBlendKvProvider:
    """Plans for one engine; owns which donors can be found. Thread-safe."""

    def __init__(
        self,
        namespace: Namespace,
        settings: Settings | None = None,
        *,
        block_size: int,
        cost: CostModel | None = None,
        standing: Standing | None = None,
        boundaries: Boundaries | None = None,
    ) -> None:
        """Start with no donors; settings default to the environment's."""
        self.namespace = namespace
        self._listeners: list[Callable[[str], None]] = []
        self.planner = Planner(
            settings=settings,
            mode=Mode.SEGMENTED,
            block_size=block_size,
            cost=cost,
            standing=standing,
            has_depth_table=False,  # ladders are copied by ranks that hold no table
            boundaries=boundaries,
            forgotten=self._forgotten,
        )

    @property
    def pipeline(self) -> SemBlendPipeline:
        """The planner's."""
        return self.planner.pipeline

    def namespace_of(self, cache_salt: str | None) -> Namespace:
        """Where a request with this salt may look for donors."""
        return namespaces.of_request(self.namespace, by_salt(cache_salt))

    # -- looking ---------------------------------------------------------------------

    def lookup(self, asked: SemanticKvLookupRequest) -> SemanticKvLookupResult:
        """What is known about a prompt, as evidence. Never raises."""
        namespace = self.namespace_of(asked.cache_salt)
        plan = self.segmented(
            as_token_array(asked.tokens), namespace, exact_tokens=asked.computed_token_count
        )
        return SemanticKvLookupResult(
            found=bool(plan.spans),
            plan=discovered(
                plan, request_id=asked.request_id, namespace=namespaces.shown(namespace)
            ),
            similarity=plan.evidence.similarity,
            reuse_ratio=plan.reused_tokens / max(1, plan.prompt_tokens),
            rejection_reason=None if plan.reason is None else plan.reason.value,
        )

    def segmented(self, tokens: TokenArray, namespace: Namespace, *, exact_tokens: int = 0) -> Plan:
        """The plan with spans anywhere, for a ladder. Never raises."""
        return self.planner.plan(tokens, namespace, exact_tokens=exact_tokens)

    def exact(
        self,
        tokens: TokenArray,
        namespace: Namespace,
        *,
        exact_tokens: int,
        account: Account | None = None,
    ) -> Plan:
        """The identical prefix behind what the engine has, whole blocks of it. Never raises."""
        return self.planner.plan(
            tokens, namespace, exact_tokens=exact_tokens, account=account, mode=Mode.EXACT_PREFIX
        )

    def add_eviction_listener(self, listener: Callable[[str], None]) -> None:
        """Have `listener(donor_id)` called when a donor is no more."""
        self._listeners.append(listener)

    def close(self) -> None:
        """Stop the pipeline's threads."""
        self.planner.close()

    def _forgotten(self, donor_id: str) -> None:
        for listener in self._listeners:
            listener(donor_id)
