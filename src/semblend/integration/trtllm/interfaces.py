"""The connector interface as types: what we are handed, and what we must be.

Only what every known generation has is stated; what some have is read with a default where
it is used. Facts about TensorRT-LLM, in our own words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class UpstreamRequest(Protocol):
    """`LlmRequest`, as C++ hands it to a connector."""

    @property
    def request_id(self) -> int:
        """The engine's number for it."""
        ...

    @property
    def prompt_len(self) -> int:
        """Tokens of the prompt."""
        ...

    def get_tokens(self, beam: int, /) -> Sequence[int]:
        """Prompt and generated tokens of a beam."""
        ...


class RequestData(Protocol):
    """One request in a step's scheduler output."""

    request_id: int
    new_tokens: Sequence[int]
    new_block_ids: Sequence[int]
    computed_position: int
    """In the first report of a load that holds up its step, without what was offered."""
    num_scheduled_tokens: int


class SchedulerOutput(Protocol):
    """A step: requests seen for the first time, and those seen before."""

    new_requests: Sequence[RequestData]
    cached_requests: Sequence[RequestData]


class ConnectorScheduler(Protocol):
    """What the leader calls."""

    def get_num_new_matched_tokens(
        self, request: UpstreamRequest, num_computed_tokens: int
    ) -> tuple[int, bool]:
        """Tokens supplied, and whether the request is parked for them."""
        ...

    def update_state_after_alloc(self, request: UpstreamRequest, block_ids: list[int]) -> None:
        """Blocks are allocated."""
        ...

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> object:
        """Orders for every rank; must pickle."""
        ...

    def request_finished(self, request: UpstreamRequest, cache_block_ids: list[int]) -> bool:
        """True keeps the blocks until every worker has named the request."""
        ...

    def update_state_after_alloc_by_layer_group(
        self, request: UpstreamRequest, block_ids_by_layer_group: list[list[int]]
    ) -> None:
        """Blocks are allocated, one list for each layer group; newer versions."""
        ...

    def request_finished_by_layer_group(
        self, request: UpstreamRequest, cache_block_ids_by_layer_group: list[list[int]]
    ) -> bool:
        """As request_finished, one list for each layer group; newer versions."""
        ...


class ConnectorWorker(Protocol):
    """What every rank calls."""

    def register_kv_caches(self, kv_cache_tensor: Any) -> None:
        """The pool."""
        ...

    def bind_connector_meta(self, metadata: object) -> None:
        """This step's orders."""
        ...

    def start_load_kv(self, stream: Any) -> None:
        """Before the forward."""
        ...

    def wait_for_layer_load(self, layer_idx: int, stream: Any) -> None:
        """Before a layer."""
        ...

    def save_kv_layer(self, layer_idx: int, stream: Any) -> None:
        """After a layer."""
        ...

    def wait_for_save(self, stream: Any) -> None:
        """After the forward."""
        ...

    def get_finished(
        self, finished_gen_req_ids: list[int], started_loading_req_ids: list[int]
    ) -> tuple[list[int], list[int]]:
        """Saved and loaded requests; each id is handed in once and returned once."""
        ...
