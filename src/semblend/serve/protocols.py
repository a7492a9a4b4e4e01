"""What the server needs of an engine. The embedded engine satisfies it; a type check proves so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from semblend.core.namespace import Namespace
from semblend.engine.api import EngineStats, Event, GenerationRequest, RequestReport


class ServedHandle(Protocol):
    """One request in the engine's hands."""

    prompt_report: RequestReport | None
    """What happened to the prompt, from the first token on."""

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
        """A Hugging Face tokenizer, with a chat template where the model has one."""
        ...

    @property
    def max_prompt_tokens(self) -> int:
        """The longest prompt the engine takes."""
        ...

    @property
    def failure(self) -> str | None:
        """Why the engine answers no request any more; None while it does."""
        ...

    def submit(self, request: GenerationRequest) -> ServedHandle:
        """Queue one request."""
        ...

    def stats(self) -> EngineStats:
        """A snapshot for metrics and the page."""
        ...

    def resume_reuse(self) -> int:
        """Turn reuse on again where shadow samples turned it off; in how many namespaces."""
        ...

    def namespace(
        self,
        *,
        tenant: str | None = None,
        template: str | None = None,
        cache_salt: str | None = None,
    ) -> Namespace:
        """The namespace of a request; a part left out is the engine's default."""
        ...
