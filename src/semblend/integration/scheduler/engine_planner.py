"""From prompts to plans for one engine, and a donor's life as its scheduler sees it.

A donor is offered (its capture has been ordered from the workers), then held once
every rank has stored its K/V, and dropped as soon as one rank loses any of it. Only
held donors are in the index, so a donor that can be found can be loaded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from semblend.core.account import Account
from semblend.core.namespace import Namespace
from semblend.core.outcomes import DeclineReason
from semblend.core.plan import Plan
from semblend.core.settings import Settings
from semblend.core.tokens import TokenArray, TokenIds, as_token_array
from semblend.integration.held_contents import HeldContents
from semblend.integration.modes import Mode
from semblend.integration.plan_cuts import exact_part, leading_part
from semblend.integration.probing import declined_unprobed, needs_no_probe
from semblend.pipeline import SemBlendPipeline
from semblend.planning.boundaries import Boundaries
from semblend.planning.certificates import Standing
from semblend.planning.cost import CostModel
from semblend.planning.depth import declined_without_table

logger = logging.getLogger("semblend.planner")

PlanRewriter = Callable[[Plan, TokenArray], Plan]
"""A last look at a plan before it is claimed: for experiments, and for tests that need a
plan no planner would make."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A prompt whose capture was ordered."""

    donor_id: str
    request_id: str
    tokens: TokenArray
    namespace: Namespace
    blocks: int


def _nobody(_: str) -> None:
    pass


class EnginePlanner:
    """Plans for one engine; owns which donors exist.

    Planning and the life of donors belong to the scheduler's thread; registering and forgetting
    may happen on another one.
    """

    def __init__(
        self,
        *,
        settings: Settings | None,
        mode: Mode,
        block_size: int,
        ranks: int = 1,
        cost: CostModel | None = None,
        standing: Standing | None = None,
        can_run: Callable[[str], bool] = needs_no_probe,
        has_depth_table: bool | None = None,
        boundaries: Boundaries | None = None,
        rewrite: PlanRewriter | None = None,
        forgotten: Callable[[str], None] = _nobody,
    ) -> None:
        """Start with no donors; settings default to the environment's.

        Parameters
        ----------
        can_run
            Which recompute policies this engine can run; others are declined.
        has_depth_table
            Whether copies can be shifted to a new depth; by default, if the model has a table.
        forgotten
            Called with every donor that is dropped; may be called from any thread.
        """
        standing = Standing() if standing is None else standing
        self.pipeline = SemBlendPipeline(
            settings,
            cost=cost,
            certified_policy=standing.policy,
            certified_until=standing.until,
            uncertified=standing.refusal,
            boundaries=boundaries,
        )
        self.generation = 0
        """Changes whenever the set of donors does; plans are remembered against it."""
        self.losses = 0
        """Changes whenever a donor goes: only then can a plan that was right be impossible."""
        self._mode = mode
        self._can_run = can_run
        self._has_depth_table = (
            standing.depth_table is not None if has_depth_table is None else has_depth_table
        )
        self._rewrite = rewrite
        self._told = forgotten
        self._block_size = block_size
        self._ranks = ranks
        self._offers: dict[str, Offer] = {}
        self._acknowledged: dict[str, int] = {}
        self._contents = HeldContents()
        self.pipeline.add_eviction_listener(self._forgotten)

    # -- plans -----------------------------------------------------------------------

    def plan(
        self,
        tokens: TokenIds,
        namespace: Namespace,
        *,
        exact_tokens: int,
        continued_tokens: int = 0,
        donates: bool = True,
        account: Account | None = None,
        policy: str | None = None,
        mode: Mode | None = None,
        text: str | None = None,
    ) -> Plan:
        """The plan for a prompt, cut to what the mode may supply. Never raises.

        Parameters
        ----------
        exact_tokens
            Tokens at the front that the engine's own prefix cache holds.
        continued_tokens
            Tokens after those that the request's own chain holds.
        account
            Records the plan, unless this is only a query.
        donates
            Whether the prompt, computed exactly, would become a donor.
        mode
            A mode other than the engine's own, for this prompt.
        text
            Also look for donors of similar meaning, as evidence. Embeds: not for a
            scheduler's loop.
        """
        mode = self._mode if mode is None else mode
        found = None
        if text is not None:
            found = self.pipeline.find_donor(
                tokens,
                namespace,
                text=text,
                exact_tokens=exact_tokens,
                block_size=self._block_size,
            )
        plan = (
            found.plan
            if found is not None
            else self.pipeline.plan(
                tokens,
                namespace,
                exact_tokens=exact_tokens,
                continued_tokens=continued_tokens,
                block_size=self._block_size,
                policy=policy,
                donates=donates,
            )
        )
        try:
            plan = self._cut_to(mode, plan)
            if mode != Mode.EXACT_PREFIX:
                if plan.executable and not self._can_run(plan.policy):
                    plan = declined_unprobed(plan)
                plan = declined_without_table(plan, has_table=self._has_depth_table)
            if self._rewrite is not None:
                plan = self._rewrite(plan, as_token_array(tokens))
        except Exception as error:
            logger.warning("SemBlend could not shape a plan: %s", error, exc_info=True)
            plan = plan.declined(DeclineReason.INTERNAL_ERROR, type(error).__name__)
        if account is not None:
            account.claimed(plan)
        return plan

    def use_cost(self, cost: CostModel) -> None:
        """Plan with these costs from now on; plans made with others are made anew."""
        self.pipeline.cost = cost
        self.generation += 1

    def still_held(self, donor_ids: Iterable[str]) -> bool:
        """Whether all of these donors are still there."""
        return all(map(self.pipeline.holds, donor_ids))

    def _cut_to(self, mode: Mode, plan: Plan) -> Plan:
        if mode == Mode.EXACT_PREFIX:
            return exact_part(plan, self._block_size)
        if mode == Mode.REQUEST_ONLY_EXPERIMENTAL:
            return leading_part(plan, self._block_size)
        return plan

    @property
    def allows_loads(self) -> bool:
        """Whether a certificate covers loads now, where the mode requires one."""
        return self._mode != Mode.SEGMENTED or self.pipeline.certified

    # -- donors ----------------------------------------------------------------------

    @property
    def pending(self) -> int:
        """Captures that are ordered but not yet stored everywhere."""
        return len(self._offers)

    def offer(self, offer: Offer) -> bool:
        """Offer a capture; False if a donor with exactly this prompt already exists."""
        if not self._contents.reserve(offer.donor_id, offer.tokens, offer.namespace):
            return False
        self._offers[offer.donor_id] = offer
        return True

    def stored(self, donor_id: str, ranks: int = 1) -> Offer | None:
        """`ranks` more ranks have stored a donor; once all have, its offer, to be registered."""
        offer = self._offers.get(donor_id)
        if offer is None:
            return None
        done = self._acknowledged.get(donor_id, 0) + ranks
        self._acknowledged[donor_id] = done
        if done < self._ranks:
            return None
        self._settle_offer(donor_id)
        return offer

    def drop(self, donor_id: str) -> None:
        """A donor is no longer whole, or was never stored: the workers drop it too."""
        self._settle_offer(donor_id)
        self.pipeline.evict(donor_id)
        self._forgotten(donor_id)

    def clear(self) -> None:
        """Forget every donor."""
        self.pipeline.clear()
        for table in (self._offers, self._acknowledged, self._contents):
            table.clear()
        self.losses += 1
        self.generation += 1

    def close(self) -> None:
        """Stop the pipeline's threads."""
        self.pipeline.close()

    def register(self, offer: Offer, text: str | None = None) -> bool:
        """Put a stored donor into the index; if there is no room, drop it."""
        held = self.pipeline.register_donor(
            offer.donor_id, offer.tokens, offer.namespace, text=text
        )
        self.generation += 1
        if not held:
            self.drop(offer.donor_id)
        return held

    def _settle_offer(self, donor_id: str) -> None:
        self._offers.pop(donor_id, None)
        self._acknowledged.pop(donor_id, None)

    def _forgotten(self, donor_id: str) -> None:
        self._contents.release(donor_id)
        self._told(donor_id)
        self.losses += 1
        self.generation += 1
