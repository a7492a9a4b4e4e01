"""What the server needs from an engine. A type check proves that the embedded engine fits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from semblend.core.namespace import Namespace
from semblend.engine.api import EngineStats, Event, GenerationRequest, RequestReport


class ServedHandle(Protocol):
    """One request inside the engine."""

    prompt_report: RequestReport | None
    """What happened to the prompt, available from the first token on."""

    def events(self) -> Iterator[Event]:
        """Block for each event in turn; the last one is always a FinishedEvent."""
        ...

    def cancel(self) -> None:
        """Ask the engine to stop; idempotent, from any thread."""
        ...


class ServedEngine(Protocol):
    """An engine that answers requests on its own threads."""

    @property
    def tokenizer(self) -> Any:
        """A Hugging Face tokenizer, with a chat template if the model has one."""
        ...

    @property
    def max_prompt_tokens(self) -> int:
        """The longest prompt the engine accepts."""
        ...

    @property
    def failure(self) -> str | None:
        """Why the engine can no longer answer; None while it can."""
        ...

    def submit(self, request: GenerationRequest) -> ServedHandle: ...

    def stats(self) -> EngineStats:
        """A snapshot for metrics and the page."""
        ...

    def resume_reuse(self) -> int:
        """Turn reuse back on where shadow samples turned it off; return how many namespaces."""
        ...

    def namespace(
        self,
        *,
        tenant: str | None = None,
        template: str | None = None,
        cache_salt: str | None = None,
        principal: str | None = None,
    ) -> Namespace:
        """The namespace of a request; omitted parts take the engine's defaults."""
        ...
