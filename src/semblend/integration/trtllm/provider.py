"""The provider: who has read these tokens before, and what of it this engine may be given.

It knows nothing of TensorRT-LLM and can be used alone; the connector's scheduler side
asks it from the executor's loop, so nothing here embeds text or waits.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from semblend.core.namespace import Namespace
from semblend.core.plan import Plan
from semblend.core.settings import Settings
from semblend.core.tokens import TokenArray, as_token_array
from semblend.integration.held_contents import HeldContents
from semblend.integration.isolation import by_salt
from semblend.integration.plan_cuts import exact_part
from semblend.integration.probing import declined_unprobed, is_dynamic
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
from semblend.planning.depth import declined_without_table


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
        standing = Standing() if standing is None else standing
        self.namespace = namespace
        self.pipeline = SemBlendPipeline(
            settings,
            cost=cost,
            certified_policy=standing.policy,
            certified_until=standing.until,
            uncertified=standing.refusal,
            boundaries=boundaries,
        )
        self._block_size = block_size
        self._numbers = itertools.count(1)
        self._contents = HeldContents()
        self._listeners: list[Callable[[str], None]] = []
        self.pipeline.add_eviction_listener(self._forgotten)

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
        plan = self.pipeline.plan(
            tokens, namespace, exact_tokens=exact_tokens, block_size=self._block_size
        )
        if plan.executable and is_dynamic(plan.policy):
            return declined_unprobed(plan)
        # Ladders are copied by ranks that hold no table.
        return declined_without_table(plan, has_table=False)

    def exact(self, tokens: TokenArray, namespace: Namespace, *, exact_tokens: int) -> Plan:
        """The identical prefix behind what the engine has, whole blocks of it. Never raises."""
        plan = self.pipeline.plan(
            tokens, namespace, exact_tokens=exact_tokens, block_size=self._block_size
        )
        return exact_part(plan, self._block_size)

    # -- donors ----------------------------------------------------------------------

    def reserve(self, tokens: TokenArray, namespace: Namespace, request_id: str) -> str | None:
        """An id for a donor that is on its way; None if its content is held already."""
        donor_id = f"{request_id}.{next(self._numbers)}"
        return donor_id if self._contents.reserve(donor_id, tokens, namespace) else None

    def register(self, donor_id: str, tokens: TokenArray, namespace: Namespace) -> bool:
        """Every rank holds a reserved donor: it can be found from now on."""
        if self.pipeline.register_donor(donor_id, tokens, namespace):
            return True
        self.forget(donor_id)
        return False

    def forget(self, donor_id: str) -> None:
        """A donor is no longer to be found."""
        self.pipeline.evict(donor_id)
        self._contents.release(donor_id)

    def add_eviction_listener(self, listener: Callable[[str], None]) -> None:
        """Have `listener(donor_id)` called when the index had to make room."""
        self._listeners.append(listener)

    def close(self) -> None:
        """Stop the pipeline's threads."""
        self.pipeline.close()

    def _forgotten(self, donor_id: str) -> None:
        self._contents.release(donor_id)
        for listener in self._listeners:
            listener(donor_id)
