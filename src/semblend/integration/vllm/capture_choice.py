"""Which prompts become donors: the policy, the request's own wish, and what can never be one."""

from __future__ import annotations

import xxhash

from semblend.integration.vllm.modes import CapturePolicy
from semblend.integration.vllm.options import ConnectorOptions
from semblend.integration.vllm.request_state import RequestState


class CaptureChoice:
    """Says why a prompt is not captured, or nothing."""

    def __init__(self, options: ConnectorOptions) -> None:
        self._options = options

    def skip_reason(self, state: RequestState, *, pending: int) -> str | None:
        """The reason against keeping this prompt, if any.

        Parameters
        ----------
        pending
            Captures on their way to the workers.
        """
        options = self._options
        if state.refusal is not None:
            return state.refusal
        if state.tainted or state.ladder_id is not None:
            return "approximate"
        if state.wants_capture is False or options.capture is CapturePolicy.NONE:
            return "register_donors_disabled"
        if len(state.tokens) < options.min_prompt_tokens:
            return "short_prompt"
        if options.capture is CapturePolicy.HINTED and state.wants_capture is not True:
            return "not_hinted"
        if options.capture is CapturePolicy.SAMPLED and not self._sampled(state):
            return "not_sampled"
        if pending >= options.capture_queue:
            return "capture_write_queue_full"
        return None

    def _sampled(self, state: RequestState) -> bool:
        if state.wants_capture is True:
            return True
        share = xxhash.xxh3_64_intdigest(state.request_id.encode()) / 2**64
        return share < self._options.capture_sample_ratio
