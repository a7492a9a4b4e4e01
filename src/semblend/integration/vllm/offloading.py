"""vLLM's own offloading connector, fit to stand beside ours in a `MultiConnector`.

vLLM's connector names what it stores by block hashes. It copies a prompt's hashes when it first
looks the prompt up, which is before approximate blocks get their private ones: it would store
approximate K/V under exact names and hand it to the next prompt. This one reads the hashes again
once a step's claims are settled, before anything is stored.
"""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector

from semblend.core.private_hashes import is_private


class SemBlendOffloadingConnector(OffloadingConnector):
    """Offloads exact blocks under their hashes, approximate ones under names nobody can ask for."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._allocated: set[str] = set()
        """Requests that got blocks in the step being scheduled."""

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        self._allocated.add(str(request.request_id))

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        """Orders of one step. Whichever connector claimed what, hashes are final by now."""
        for request_id in self._allocated:
            status = self.scheduler._req_status.get(request_id)
            if status is not None:
                _name_anew(status)
        self._allocated.clear()
        return super().build_connector_meta(scheduler_output)


def _name_anew(status: Any) -> None:
    """Forget the names of blocks whose hashes have become private, and of all behind them."""
    hashes = status.req.block_hashes
    first = next((number for number, each in enumerate(hashes) if is_private(each)), None)
    if first is None:
        return
    for group, state in zip(status.config.kv_group_configs, status.group_states, strict=True):
        del state.offload_keys[first // group.hashes_per_chunk :]
    status.update_offload_keys()
