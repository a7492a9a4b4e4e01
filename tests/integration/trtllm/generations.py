"""The upstream generations of the connector interface, as facts: what requests show."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One generation of TensorRT-LLM as a connector sees it."""

    name: str
    module: str
    request_fields: tuple[str, ...]
    """RequestData's fields."""
    salt_as_text: bool


OLDER = Generation(
    name="older",
    module="tensorrt_llm._torch.pyexecutor.kv_cache_connector",
    request_fields=(
        "request_id",
        "new_tokens",
        "new_block_ids",
        "computed_position",
        "num_scheduled_tokens",
    ),
    salt_as_text=False,
)
NEWER = Generation(
    name="newer",
    module="tensorrt_llm._torch.pyexecutor.connectors.kv_cache_connector",
    request_fields=(
        *OLDER.request_fields,
        "block_hashes",
        "priorities",
        "cache_salt",
        "new_block_ids_by_layer_group",
    ),
    salt_as_text=True,
)
GENERATIONS = {generation.name: generation for generation in (OLDER, NEWER)}


def salt_number(cache_salt: str | None) -> int | None:
    """A stand-in for the engine's own numbering of salts."""
    if cache_salt is None:
        return None
    return int.from_bytes(hashlib.sha256(cache_salt.encode()).digest()[:8], "little")


class LlmRequest:
    """A request as the executor holds it; only what its generation shows is there."""

    def __init__(
        self,
        request_id: int,
        prompt: list[int],
        *,
        max_new_tokens: int,
        cache_salt: str | None,
        generation: Generation,
    ) -> None:
        self.request_id = self.py_request_id = request_id
        self.prompt_len = len(prompt)
        self.max_new_tokens = max_new_tokens
        self.state: Any = "context"
        self.context_current_position = 0
        self.context_chunk_size = 0
        self.is_generation_only_request = False
        self.is_dummy_request = False
        self.lora_task_id = None
        self.kv_cache_retention_config = None
        self.salt = cache_salt
        """The simulator's own; connectors see one of the two below."""
        if generation.salt_as_text:
            self.cache_salt = cache_salt
        else:
            self.cache_salt_id = salt_number(cache_salt)
        self.block_ids: list[int] = []
        self.added = False
        self.cancelled = False
        self.logits: list[Any] = []
        self._tokens = list(prompt)

    @property
    def context_remaining_length(self) -> int:
        return self.prompt_len - self.context_current_position

    def get_tokens(self, beam: int) -> list[int]:
        assert beam == 0
        return list(self._tokens)

    def append(self, token: int) -> None:
        self._tokens.append(token)

    @property
    def generated(self) -> list[int]:
        return self._tokens[self.prompt_len :]


@dataclass
class ScheduledRequests:
    """One step's batch, in both generations' shapes."""

    chunking: list[LlmRequest] = field(default_factory=list)
    last_chunk: list[LlmRequest] = field(default_factory=list)
    generation_requests: list[LlmRequest] = field(default_factory=list)

    @property
    def context_requests(self) -> list[LlmRequest]:
        return [*self.chunking, *self.last_chunk]

    @context_requests.setter
    def context_requests(self, requests: list[LlmRequest]) -> None:
        kept = {request.request_id for request in requests}
        self.chunking = [one for one in self.chunking if one.request_id in kept]
        self.last_chunk = [one for one in self.last_chunk if one.request_id in kept]

    @property
    def context_requests_chunking(self) -> list[LlmRequest]:
        return self.chunking

    @context_requests_chunking.setter
    def context_requests_chunking(self, requests: list[LlmRequest]) -> None:
        self.chunking = requests

    @property
    def context_requests_last_chunk(self) -> list[LlmRequest]:
        return self.last_chunk

    @context_requests_last_chunk.setter
    def context_requests_last_chunk(self, requests: list[LlmRequest]) -> None:
        self.last_chunk = requests

    def __len__(self) -> int:
        return len(self.chunking) + len(self.last_chunk) + len(self.generation_requests)
