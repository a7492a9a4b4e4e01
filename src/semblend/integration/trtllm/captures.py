"""Which prompts become donors, and a donor's life as the leader sees it.

A capture is ordered in the step that finishes a prompt, reaches every rank with that
step's metadata, and the request's blocks are held until the copy is made. Once every rank
has said that it holds the donor, and not before, the donor can be found.
"""

from __future__ import annotations

import itertools

from semblend.integration.audit import AuditStream
from semblend.integration.modes import CapturePolicy
from semblend.integration.scheduler.capture_choice import skip_reason
from semblend.integration.scheduler.planner import Offer
from semblend.integration.scheduler.setup import CaptureRules
from semblend.integration.trtllm import namespaces
from semblend.integration.trtllm.donor_budget import DonorBudget
from semblend.integration.trtllm.metadata import CaptureCommand
from semblend.integration.trtllm.options import ConnectorOptions
from semblend.integration.trtllm.provider import SemBlendKvProvider
from semblend.integration.trtllm.request_state import State
from semblend.integration.worker.donors import segment_keys


class Captures:
    """Orders captures and owns the ranks' bytes. Called under the scheduler side's lock."""

    def __init__(
        self,
        *,
        provider: SemBlendKvProvider,
        options: ConnectorOptions,
        audit: AuditStream,
        block_size: int,
    ) -> None:
        self.announces = ""
        """The fleet's subject, where donors are handed to a publisher as they are registered."""
        self.budget = DonorBudget(options.host_donor_bytes)
        self._planner = provider.planner
        self._rules = CaptureRules(
            policy=CapturePolicy.ALL if options.register_donors else CapturePolicy.NONE,
            queue=options.capture_queue,
            min_prompt_tokens=options.min_prompt_tokens,
        )
        self._audit = audit
        self._block_size = block_size
        self._numbers = itertools.count(1)
        self._pending: dict[int, Offer] = {}
        self._dropped: list[str] = []
        self._dying: set[str] = set()
        """Donors the index has forgotten while an offer still relied on them."""
        provider.add_eviction_listener(self._forgotten)

    @property
    def pending(self) -> int:
        """Captures that not every rank has answered yet."""
        return len(self._pending)

    def order(self, state: State, block_ids: tuple[int, ...]) -> CaptureCommand | None:
        """The order to keep this prompt, or None; asked once a request."""
        offer, skip = self._offered(state)
        if skip is None and (offer.blocks > len(block_ids) or min(block_ids[: offer.blocks]) < 0):
            skip = "no_blocks"
            self._planner.drop(offer.donor_id)
        if skip is None:
            return self._ordered(state, offer, block_ids[: offer.blocks])
        self._audit.event("donor_registration_skipped", state.request_id, reason=skip)
        return None

    def _offered(self, state: State) -> tuple[Offer, str | None]:
        """The prompt as a donor, and why it is not to be one, if so."""
        offer = Offer(
            donor_id=f"{state.request_id}.{next(self._numbers)}",
            request_id=state.request_id,
            tokens=state.tokens,
            namespace=state.namespace,
            blocks=-(-len(state.tokens) // self._block_size),
        )
        skip = skip_reason(state, self._rules, pending=len(self._pending))
        if skip is None and not self._planner.offer(offer):
            skip = "already_held"
        return offer, skip

    def _ordered(
        self, state: State, offer: Offer, block_ids: tuple[int, ...]
    ) -> CaptureCommand | None:
        share_key = self._planner.pipeline.share_key(offer.namespace)
        kept, evicted = self.budget.admit(offer.donor_id, segment_keys(share_key, offer.tokens))
        for gone in evicted:
            self._planner.drop(gone)
            self._dropped.append(gone)
        if not kept:
            self._planner.drop(offer.donor_id)
            reason = "no_capacity"
            self._audit.event("donor_registration_skipped", state.request_id, reason=reason)
            return None
        # Nobody may make room with it while a rank is still copying.
        self.budget.pin((offer.donor_id,))
        number = next(self._numbers)
        self._pending[number] = offer
        state.handle.capture_id = number
        return CaptureCommand(
            capture_id=number,
            request_id=state.handle.number,
            donor_id=offer.donor_id,
            block_ids=block_ids,
            tokens=offer.tokens,
            share_key=share_key,
        )

    def settle(self, capture_id: int, failure: str | None) -> None:
        """Every rank has answered: the donor can be found, or is let go of everywhere."""
        offer = self._pending.pop(capture_id, None)
        if offer is None:
            return
        self.budget.unpin((offer.donor_id,))
        if failure is None and self._registered(offer, blocks=offer.blocks):
            if self.announces:
                self._audit.event(
                    "contract_event_published",
                    offer.request_id,
                    kind="donor_registered",
                    donor_id=offer.donor_id,
                    state="handed_to_publisher",
                    subject=self.announces,
                )
            return
        reason = failure or "the index has no room"
        self._audit.event("donor_registration_failed", offer.request_id, reason=reason)
        self._planner.drop(offer.donor_id)

    def _registered(self, offer: Offer, *, blocks: int) -> bool:
        """Every rank holds a donor: it can be found from now on."""
        self._planner.stored(offer.donor_id)
        if not self._planner.register(offer):
            return False
        self._audit.donor_registered(
            offer.request_id,
            donor_id=offer.donor_id,
            namespace=namespaces.shown(offer.namespace),
            tokens=len(offer.tokens),
            blocks=blocks,
        )
        return True

    def is_pending(self, capture_id: int | None) -> bool:
        """Whether a rank may still read the blocks of this capture."""
        return capture_id in self._pending

    def unpin(self, donor_ids: tuple[str, ...]) -> None:
        """An offer is settled; donors that were only kept for it go."""
        self.budget.unpin(donor_ids)
        for donor_id in donor_ids:
            if donor_id in self._dying and not self.budget.is_pinned(donor_id):
                self._dying.discard(donor_id)
                self._drop(donor_id)

    def take_dropped(self) -> list[str]:
        """Donors to let go of with the next metadata."""
        dropped, self._dropped = self._dropped, []
        return dropped

    def discover(self, state: State) -> None:
        """For discovery: a donor whose tokens matter and whose K/V nobody keeps."""
        offer, skip = self._offered(state)
        if skip is None:
            self._registered(offer, blocks=0)

    def _forgotten(self, donor_id: str) -> None:
        if donor_id not in self.budget:
            return
        if self.budget.is_pinned(donor_id):
            self._dying.add(donor_id)
        else:
            self._drop(donor_id)

    def _drop(self, donor_id: str) -> None:
        self.budget.remove(donor_id)
        self._dropped.append(donor_id)
