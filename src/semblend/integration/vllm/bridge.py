"""From prompts to plans, and a donor's life as the scheduler sees it.

A donor is offered (its capture is on its way to the workers), then held once
every rank has stored its K/V, and dropped as soon as one rank loses any of it. Only
held donors are in the index, so a donor that can be found can be loaded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from semblend.core.namespace import Namespace
from semblend.core.outcomes import DeclineReason
from semblend.core.plan import Plan
from semblend.core.settings import Settings
from semblend.core.tokens import TokenArray
from semblend.integration.held_contents import HeldContents
from semblend.integration.plan_cuts import exact_part, leading_part
from semblend.integration.probing import can_probe, declined_unprobed, is_dynamic
from semblend.integration.vllm.modes import Mode
from semblend.pipeline import SemBlendPipeline
from semblend.planning.boundaries import Boundaries
from semblend.planning.certificates import Standing
from semblend.planning.cost import CostModel
from semblend.planning.depth import declined_without_table

logger = logging.getLogger("vllm.semblend")

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


class PlannerBridge:
    """Plans for one engine; owns which donors exist. Called from the scheduler's thread."""

    def __init__(
        self,
        *,
        settings: Settings,
        mode: Mode,
        block_size: int,
        ranks: int,
        cost: CostModel,
        standing: Standing,
        probes: bool = False,
        boundaries: Boundaries | None = None,
    ) -> None:
        self.pipeline = SemBlendPipeline(
            settings,
            cost=cost,
            certified_policy=standing.policy,
            certified_until=standing.until,
            uncertified=standing.refusal,
            boundaries=boundaries,
        )
        self.rewrite: PlanRewriter | None = None
        self.registrar: Callable[[Offer], bool] | None = None
        """Registers donors with their text, later; False leaves it to this class, now."""
        self.generation = 0
        """Changes whenever the set of donors does; plans are remembered against it."""
        self._mode = mode
        self._probes = probes
        self._has_depth_table = standing.depth_table is not None
        self._block_size = block_size
        self._ranks = ranks
        self._settings = settings
        self._offers: dict[str, Offer] = {}
        self._acknowledged: dict[str, int] = {}
        self._contents = HeldContents()
        self._dropped: list[str] = []
        self.pipeline.add_eviction_listener(self._forgotten)

    # -- plans -----------------------------------------------------------------------

    def plan(
        self,
        tokens: TokenArray,
        namespace: Namespace,
        *,
        request_id: str | None,
        exact_tokens: int,
        policy: str | None = None,
    ) -> Plan:
        """The plan for a prompt, cut to what the mode may supply. Never raises."""
        plan = self.pipeline.plan(
            tokens,
            namespace,
            exact_tokens=exact_tokens,
            block_size=self._block_size,
            policy=policy,
        )
        try:
            plan = self._cut_to_mode(plan)
            if plan.executable and not self._can_carry_out(plan):
                plan = declined_unprobed(plan)
            if self._mode is not Mode.EXACT_PREFIX:
                plan = declined_without_table(plan, has_table=self._has_depth_table)
            if self.rewrite is not None:
                plan = self.rewrite(plan, tokens)
        except Exception as error:
            logger.warning("SemBlend could not shape a plan: %s", error, exc_info=True)
            plan = plan.declined(DeclineReason.INTERNAL_ERROR, type(error).__name__)
        if request_id is not None:
            self.pipeline.ledger.open(request_id, plan)
        return plan

    def still_held(self, plan: Plan) -> bool:
        """Whether every donor of a plan is still there."""
        return all(self.pipeline.holds(donor_id) for donor_id in plan.donor_ids)

    def _cut_to_mode(self, plan: Plan) -> Plan:
        if self._mode is Mode.EXACT_PREFIX:
            return exact_part(plan, self._block_size)
        if self._mode is Mode.REQUEST_ONLY_EXPERIMENTAL:
            return leading_part(plan, self._block_size)
        return plan

    def _can_carry_out(self, plan: Plan) -> bool:
        """Whether a dynamic policy gets the probe it asks for; never run without it."""
        if self._mode is Mode.EXACT_PREFIX or not is_dynamic(plan.policy):
            return True
        return self._probes and can_probe(plan.policy)

    @property
    def certified(self) -> bool:
        """Whether a certificate allows reuse, now."""
        return self.pipeline.certified

    # -- donors ----------------------------------------------------------------------

    @property
    def pending(self) -> int:
        """Captures that are ordered and not yet stored everywhere."""
        return len(self._offers)

    def is_held(self, tokens: TokenArray, namespace: Namespace) -> bool:
        """Whether a donor with exactly this prompt exists or is on its way."""
        return self._contents.holds(tokens, namespace)

    def offer(self, offer: Offer) -> None:
        """A capture was ordered."""
        self._offers[offer.donor_id] = offer
        self._contents.reserve(offer.donor_id, offer.tokens, offer.namespace)

    def register_at_once(self, offer: Offer) -> bool:
        """For discovery: a donor whose tokens matter and whose K/V nobody keeps."""
        self.offer(offer)
        self._offers.pop(offer.donor_id)
        return self._register(offer)

    def stored(self, donor_id: str, ranks: int) -> Offer | None:
        """`ranks` more ranks have stored a donor; the offer, once all have and it is held."""
        offer = self._offers.get(donor_id)
        if offer is None:
            return None
        done = self._acknowledged.get(donor_id, 0) + ranks
        self._acknowledged[donor_id] = done
        if done < self._ranks:
            return None
        self._settle_offer(donor_id)
        if self._register(offer):
            return offer
        self.drop(donor_id)
        return None

    def drop(self, donor_id: str) -> None:
        """A donor is no longer whole, or was never stored: the workers let it go too."""
        self._settle_offer(donor_id)
        self.pipeline.evict(donor_id)
        self._forgotten(donor_id)

    def clear(self) -> None:
        """Forget every donor."""
        self.pipeline.clear()
        for table in (self._offers, self._acknowledged, self._contents):
            table.clear()
        self._dropped.clear()
        self.generation += 1

    def take_dropped(self) -> list[str]:
        """Donors forgotten since the last call, for the workers."""
        dropped, self._dropped = self._dropped, []
        return dropped

    def close(self) -> None:
        """Stop the pipeline's threads."""
        self.pipeline.close()

    def register_now(self, offer: Offer, text: str | None = None) -> bool:
        """Put a stored donor into the index. Also called from the registrar's thread."""
        held = self.pipeline.register_donor(
            offer.donor_id, offer.tokens, offer.namespace, text=text
        )
        self.generation += 1
        return held

    def _register(self, offer: Offer) -> bool:
        if self.registrar is not None and self.registrar(offer):
            return True
        return self.register_now(offer)

    def _settle_offer(self, donor_id: str) -> None:
        self._offers.pop(donor_id, None)
        self._acknowledged.pop(donor_id, None)

    def _forgotten(self, donor_id: str) -> None:
        self._contents.release(donor_id)
        self._dropped.append(donor_id)
        self.generation += 1
