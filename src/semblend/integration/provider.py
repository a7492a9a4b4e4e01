"""The provider: who has read these tokens before, and what of it can be reused.

For engines that keep donors' K/V in their own prefix cache, under keys of their own. It knows
nothing of an engine and can be used alone: register what was computed exactly,
ask for a plan, look at the counts. An adapter holds one and asks it from the
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
from collections.abc import Sequence
from dataclasses import dataclass

from semblend.core.errors import DonorError, InvalidTokensError
from semblend.core.namespace import Namespace
from semblend.core.outcomes import DeclineReason
from semblend.core.plan import Plan
from semblend.core.settings import Settings
from semblend.core.tokens import TokenArray, TokenIds, as_token_array
from semblend.integration.isolation import by_extra_key
from semblend.integration.modes import Mode
from semblend.integration.plan_cuts import within_hole_budget
from semblend.integration.probing import can_probe, pass_tokens
from semblend.integration.scheduler.engine_planner import EnginePlanner, Offer
from semblend.pipeline import PipelineStats, SemBlendPipeline
from semblend.planning.boundaries import Boundaries
from semblend.planning.certificates import Standing
from semblend.planning.cost import CostModel


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DonorRecord:
    """A prompt that was computed exactly, and the key it is cached under."""

    donor_id: str
    tokens: TokenArray
    """From position 0, whole pages of the engine's cache."""
    extra_key: str | None
    cache_salt: str | None


class DonorsLostError(DonorError):
    """Donors that a plan relies on are no longer in the engine's cache, or hold something else."""

    def __init__(self, donor_ids: Sequence[str], message: str) -> None:
        super().__init__(message)
        self.donor_ids = tuple(donor_ids)


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
        self.namespace = namespace
        self._page_size = page_size
        self._numbers = itertools.count(1)
        self._donors: dict[str, DonorRecord] = {}
        self.planner = EnginePlanner(
            settings=settings,
            mode=Mode.SEGMENTED,
            block_size=page_size,
            cost=cost,
            standing=standing,
            can_run=can_probe,
            boundaries=boundaries,
            forgotten=self._forgotten,
        )

    @property
    def pipeline(self) -> SemBlendPipeline:
        """The planner's."""
        return self.planner.pipeline

    @property
    def generation(self) -> int:
        """Changes whenever the set of donors does; plans are remembered against it."""
        return self.planner.generation

    def namespace_of(self, extra_key: str | None, cache_salt: str | None) -> Namespace:
        """Where a request with these keys may look for donors."""
        return self.namespace.with_parts(cache_salt=by_extra_key(extra_key, cache_salt))

    def whole_pages(self, tokens: int) -> int:
        """How many of a prompt's tokens the engine's cache can hold: those of whole pages."""
        return self.pages(tokens) * self._page_size

    def pages(self, tokens: int) -> int:
        """How many whole pages that is."""
        return tokens // self._page_size

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
        record = DonorRecord(
            donor_id=f"{request_id}#{next(self._numbers)}",
            tokens=array,
            extra_key=extra_key,
            cache_salt=cache_salt,
        )
        offer = Offer(
            donor_id=record.donor_id,
            request_id=request_id,
            tokens=array,
            namespace=self.namespace_of(extra_key, cache_salt),
            blocks=self.pages(whole),
        )
        if not self.planner.offer(offer):
            return None
        self._donors[record.donor_id] = record
        self.planner.stored(record.donor_id)  # the tree holds it already
        return record if self.planner.register(offer, text) else None

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
        return self.plan(
            tokens, namespace, exact_tokens=exact_tokens, hole_budget=hole_budget, text=text
        )

    def plan(
        self,
        tokens: TokenIds,
        namespace: Namespace,
        *,
        exact_tokens: int,
        continued_tokens: int = 0,
        hole_budget: int | None = None,
        text: str | None = None,
        policy: str | None = None,
    ) -> Plan:
        """The same for a prompt whose namespace is known.

        It may name a policy, and it may continue a chain.
        """
        plan = self.planner.plan(
            tokens,
            namespace,
            exact_tokens=exact_tokens,
            continued_tokens=continued_tokens,
            text=text,
            policy=policy,
        )
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
        self.planner.drop(donor_id)

    def clear(self) -> None:
        """Forget every donor."""
        self.planner.clear()
        self._donors.clear()

    def stats(self) -> PipelineStats:
        """Counts and sizes, now."""
        return self.pipeline.stats()

    def close(self) -> None:
        """Stop the pipeline's threads."""
        self.planner.close()

    def _forgotten(self, donor_id: str) -> None:
        self._donors.pop(donor_id, None)
