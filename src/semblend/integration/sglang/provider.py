"""The provider: who has read these tokens before, and what of it can be reused.

It knows nothing of SGLang and can be used alone: register what was computed exactly,
ask for a plan, look at the counts. The backend holds one and asks it from the
scheduler's loop, so nothing here embeds text or waits.

>>> from semblend.core.namespace import Namespace
>>> from semblend.core.settings import Settings
>>> provider = SemBlendProvider(
...     Namespace.of(model="m"), Settings(embedder="none", allow_uncertified=True)
... )
>>> document = list(range(1000, 1500))
>>> provider.register_donor([1, 2, 3] + document, request_id="first").donor_id
'first#1'
>>> provider.match([9] * 40 + document + [7, 8]).reused_tokens > 400
True
>>> provider.match([9] * 40 + document + [7, 8], extra_key="somebody else").spans
()
"""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass

from semblend.core.errors import InvalidTokensError
from semblend.core.ledger import Ledger
from semblend.core.namespace import Namespace
from semblend.core.outcomes import DeclineReason
from semblend.core.plan import Plan
from semblend.core.settings import Settings
from semblend.core.tokens import TokenArray, TokenIds, as_token_array
from semblend.integration.held_contents import HeldContents
from semblend.integration.plan_cuts import within_hole_budget
from semblend.integration.probing import can_probe, declined_unprobed, pass_tokens
from semblend.integration.sglang import namespaces
from semblend.pipeline import PipelineStats, SemBlendPipeline
from semblend.planning.boundaries import Boundaries
from semblend.planning.certificates import Standing
from semblend.planning.cost import CostModel
from semblend.planning.depth import declined_without_table


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DonorRecord:
    """A prompt that was computed exactly, and the key it is cached under."""

    donor_id: str
    tokens: TokenArray
    """From position 0, whole pages of the engine's cache."""
    extra_key: str | None
    cache_salt: str | None


class SemBlendProvider:
    """Plans for one engine; owns which donors are known. Thread-safe.

    It does not know what the engine's cache evicts: whoever sees that, or finds out when
    loading, says `forget`.
    """

    def __init__(
        self,
        namespace: Namespace,
        settings: Settings | None = None,
        *,
        page_size: int = 1,
        cost: CostModel | None = None,
        standing: Standing | None = None,
        boundaries: Boundaries | None = None,
    ) -> None:
        """Start with no donors; settings default to the environment's."""
        standing = Standing() if standing is None else standing
        self.pipeline = SemBlendPipeline(
            settings,
            cost=cost,
            certified_policy=standing.policy,
            certified_until=standing.until,
            uncertified=standing.refusal,
            boundaries=boundaries,
        )
        self.pipeline.add_eviction_listener(self._dropped)
        self.namespace = namespace
        self._page_size = page_size
        self._has_depth_table = standing.depth_table is not None
        self._numbers = itertools.count(1)
        self._donors: dict[str, DonorRecord] = {}
        self._contents = HeldContents()
        self._lock = threading.RLock()
        self.generation = 0
        """Changes whenever the set of donors does; plans are remembered against it."""

    @property
    def ledger(self) -> Ledger:
        """What became of requests."""
        return self.pipeline.ledger

    def namespace_of(self, extra_key: str | None, cache_salt: str | None) -> Namespace:
        """Where a request with these keys may look for donors."""
        return namespaces.of_request(self.namespace, extra_key, cache_salt)

    def whole_pages(self, tokens: int) -> int:
        """How many of a prompt's tokens the engine's cache can hold: those of whole pages."""
        return tokens // self._page_size * self._page_size

    def register_donor(
        self,
        tokens: TokenIds,
        *,
        request_id: str,
        extra_key: str | None = None,
        cache_salt: str | None = None,
        text: str | None = None,
    ) -> DonorRecord | None:
        """Offer a prompt whose K/V was computed exactly; None if it is not kept.

        Too short, not token ids, or known already are reasons not to keep it.
        """
        try:
            array = as_token_array(tokens)
        except InvalidTokensError:
            return None
        whole = self.whole_pages(int(array.size))
        if whole < max(1, self.pipeline.settings.min_prompt_tokens):
            return None
        array = array[:whole].copy()
        namespace = self.namespace_of(extra_key, cache_salt)
        record = DonorRecord(
            donor_id=f"{request_id}#{next(self._numbers)}",
            tokens=array,
            extra_key=extra_key,
            cache_salt=cache_salt,
        )
        if not self._contents.reserve(record.donor_id, array, namespace):
            return None
        with self._lock:
            self._donors[record.donor_id] = record
        # Outside the lock: fingerprinting takes milliseconds, and matching must not wait.
        if not self.pipeline.register_donor(record.donor_id, array, namespace, text=text):
            self._dropped(record.donor_id)
            return None
        self.generation += 1
        return record

    def match(
        self,
        tokens: TokenIds,
        *,
        extra_key: str | None = None,
        cache_salt: str | None = None,
        exact_tokens: int = 0,
        hole_budget: int | None = None,
        text: str | None = None,
    ) -> Plan:
        """The plan for a prompt. Never raises; a plan that is refused says why.

        Parameters
        ----------
        exact_tokens
            Tokens at the front that the engine's own prefix cache holds.
        hole_budget
            Cut the plan so that no more tokens than these are computed between spans.
        text
            Also look for donors of similar meaning, as evidence. Embeds: not for a
            scheduler's loop.
        """
        namespace = self.namespace_of(extra_key, cache_salt)
        page = self._page_size
        found = None
        if text is not None:
            found = self.pipeline.find_donor(
                tokens, namespace, text=text, exact_tokens=exact_tokens, block_size=page
            )
        if found is not None:
            plan = found.plan
        else:
            plan = self.pipeline.plan(tokens, namespace, exact_tokens=exact_tokens, block_size=page)
        if plan.executable and not can_probe(plan.policy):
            plan = declined_unprobed(plan)
        plan = declined_without_table(plan, has_table=self._has_depth_table)
        if plan.executable and hole_budget is not None:
            cut = within_hole_budget(plan, hole_budget, page_size=self._page_size)
            if cut is None or pass_tokens(cut) > hole_budget:
                plan = plan.declined(DeclineReason.NO_CAPACITY, "too many tokens for a step")
            else:
                plan = cut
        return plan

    def donor(self, donor_id: str) -> DonorRecord | None:
        """What is known of a donor."""
        return self._donors.get(donor_id)

    def forget(self, donor_id: str) -> None:
        """A donor's K/V is gone."""
        self.pipeline.evict(donor_id)
        self._dropped(donor_id)

    def clear(self) -> None:
        """Forget every donor."""
        self.pipeline.clear()
        with self._lock:
            self._donors.clear()
            self._contents.clear()
            self.generation += 1

    def stats(self) -> PipelineStats:
        """Counts and sizes, now."""
        return self.pipeline.stats()

    def close(self) -> None:
        """Stop the pipeline's threads."""
        self.pipeline.close()

    def _dropped(self, donor_id: str) -> None:
        with self._lock:
            record = self._donors.pop(donor_id, None)
            if record is None:
                return
            self._contents.release(donor_id)
            self.generation += 1
