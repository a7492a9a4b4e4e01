"""Which prompts become donors, and a donor's life as the leader sees it.

A capture is ordered in the step that finishes a prompt, reaches every rank with that
step's metadata, and the request's blocks are held until the copy is made. Once every rank
has said that it holds the donor, and not before, the donor can be found.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from semblend.core.namespace import Namespace
from semblend.core.tokens import TokenArray
from semblend.integration.audit import AuditStream
from semblend.integration.trtllm import namespaces
from semblend.integration.trtllm.donor_budget import DonorBudget, segment_keys
from semblend.integration.trtllm.metadata import CaptureCommand
from semblend.integration.trtllm.options import ConnectorOptions
from semblend.integration.trtllm.provider import SemBlendKvProvider
from semblend.integration.trtllm.request_state import RequestState


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pending:
    request_id: int
    donor_id: str
    tokens: TokenArray
    namespace: Namespace
    blocks: int


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
        self._provider = provider
        self._options = options
        self._audit = audit
        self._block_size = block_size
        self._numbers = itertools.count(1)
        self._pending: dict[int, _Pending] = {}
        self._dropped: list[str] = []
        self._dying: set[str] = set()
        """Donors the index has forgotten while an offer still relied on them."""
        provider.add_eviction_listener(self._forgotten)

    @property
    def pending(self) -> int:
        """Captures that not every rank has answered yet."""
        return len(self._pending)

    def order(self, state: RequestState, block_ids: tuple[int, ...]) -> CaptureCommand | None:
        """The order to keep this prompt, or None; asked once a request."""
        state.capture_decided = True
        skip = self._skip_reason(state)
        if skip is None and state.namespace is not None:
            blocks = -(-len(state.tokens) // self._block_size)
            donor_id = self._provider.reserve(state.tokens, state.namespace, state.key)
            if donor_id is None:
                skip = "already_held"
            elif blocks > len(block_ids) or min(block_ids[:blocks]) < 0:
                skip = "no_blocks"
            else:
                return self._ordered(state, state.namespace, donor_id, block_ids[:blocks])
            if donor_id is not None:
                self._provider.forget(donor_id)
        self._audit.event("donor_registration_skipped", state.key, reason=skip)
        return None

    def _ordered(
        self,
        state: RequestState,
        namespace: Namespace,
        donor_id: str,
        block_ids: tuple[int, ...],
    ) -> CaptureCommand | None:
        share_key = self._provider.pipeline.share_key(namespace)
        kept, evicted = self.budget.admit(donor_id, segment_keys(share_key, state.tokens))
        for gone in evicted:
            self._provider.forget(gone)
            self._dropped.append(gone)
        if not kept:
            self._provider.forget(donor_id)
            self._audit.event("donor_registration_skipped", state.key, reason="no_capacity")
            return None
        # Nobody may make room with it while a rank is still copying.
        self.budget.pin((donor_id,))
        number = next(self._numbers)
        self._pending[number] = _Pending(
            request_id=state.request_id,
            donor_id=donor_id,
            tokens=state.tokens,
            namespace=namespace,
            blocks=len(block_ids),
        )
        state.capture_id = number
        return CaptureCommand(
            capture_id=number,
            request_id=state.request_id,
            donor_id=donor_id,
            block_ids=block_ids,
            tokens=state.tokens,
            share_key=share_key,
        )

    def settle(self, capture_id: int, failure: str | None) -> None:
        """Every rank has answered: the donor can be found, or is let go of everywhere."""
        pending = self._pending.pop(capture_id, None)
        if pending is None:
            return
        self.budget.unpin((pending.donor_id,))
        if failure is None and self._provider.register(
            pending.donor_id, pending.tokens, pending.namespace
        ):
            self._audit.donor_registered(
                str(pending.request_id),
                donor_id=pending.donor_id,
                namespace=namespaces.shown(pending.namespace),
                tokens=len(pending.tokens),
                blocks=pending.blocks,
            )
            if self.announces:
                self._audit.event(
                    "contract_event_published",
                    str(pending.request_id),
                    kind="donor_registered",
                    donor_id=pending.donor_id,
                    state="handed_to_publisher",
                    subject=self.announces,
                )
            return
        self._audit.event(
            "donor_registration_failed",
            str(pending.request_id),
            reason=failure or "the index has no room",
        )
        self._provider.forget(pending.donor_id)
        self._drop(pending.donor_id)

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

    def discover(self, state: RequestState) -> None:
        """For discovery: a donor whose tokens matter and whose K/V nobody keeps."""
        state.capture_decided = True
        if state.namespace is None or self._skip_reason(state) is not None:
            return
        donor_id = self._provider.reserve(state.tokens, state.namespace, state.key)
        if donor_id is not None and self._provider.register(
            donor_id, state.tokens, state.namespace
        ):
            self._audit.donor_registered(
                state.key,
                donor_id=donor_id,
                namespace=namespaces.shown(state.namespace),
                tokens=len(state.tokens),
                blocks=0,
            )

    def _skip_reason(self, state: RequestState) -> str | None:
        if state.refusal is not None:
            return state.refusal
        if state.tainted:
            return "approximate"
        if not self._options.register_donors:
            return "register_donors_disabled"
        if state.namespace is None:
            return "incomplete_namespace"
        if len(state.tokens) < self._options.min_prompt_tokens:
            return "short_prompt"
        if len(self._pending) >= self._options.capture_queue:
            return "capture_write_queue_full"
        return None

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
