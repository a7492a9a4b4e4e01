"""The embedded engine's public values: requests, events and reports. No torch here.

The server, the demo and the benchmarks use the engine only through these.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from semblend.core.errors import RequestFieldError
from semblend.core.namespace import Namespace
from semblend.core.outcomes import DeclineReason, Outcome
from semblend.core.plan import CostEstimate
from semblend.core.tokens import TokenArray


class FinishReason(StrEnum):
    """Why generation ended."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


class TokenSource(StrEnum):
    """Where a prompt token's K/V came from. These are the colours of the dashboard's strip."""

    EXACT = "exact"
    CONTINUED = "continued"
    REUSED = "reused"
    RECOMPUTED = "recomputed"
    COMPUTED = "computed"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are chosen. The default is greedy."""

    max_tokens: int = 64
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps all tokens."""
    min_p: float = 0.0
    """Drop tokens less likely than this share of the most likely token's probability."""
    presence_penalty: float = 0.0
    """Subtracted from the logit of every token already in the answer."""
    frequency_penalty: float = 0.0
    """Subtracted once per occurrence in the answer."""
    repetition_penalty: float = 1.0
    """Divides the positive logits of tokens in prompt or answer, and multiplies negative ones."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Added to the logits of these token ids."""
    json_schema: str | None = None
    """A JSON schema, as JSON text, that the answer must follow."""
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    top_logprobs: int = 0

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise RequestFieldError("max_tokens", f"expected at least 1, got {self.max_tokens}")
        if not 0.0 <= self.temperature <= 10.0:
            raise RequestFieldError("temperature", f"expected 0 to 10, got {self.temperature}")
        if not 0.0 < self.top_p <= 1.0:
            raise RequestFieldError("top_p", f"expected above 0 and at most 1, got {self.top_p}")
        if self.top_k < 0:
            raise RequestFieldError("top_k", f"expected 0 or more, got {self.top_k}")
        if not 0.0 <= self.min_p <= 1.0:
            raise RequestFieldError("min_p", f"expected 0 to 1, got {self.min_p}")
        for name in ("presence_penalty", "frequency_penalty"):
            if not -2.0 <= getattr(self, name) <= 2.0:
                raise RequestFieldError(name, f"expected -2 to 2, got {getattr(self, name)}")
        if not 0.0 < self.repetition_penalty <= 10.0:
            raise RequestFieldError(
                "repetition_penalty",
                f"expected above 0 and at most 10, got {self.repetition_penalty}",
            )
        if not 0 <= self.top_logprobs <= 20:
            raise RequestFieldError("top_logprobs", f"expected 0 to 20, got {self.top_logprobs}")


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One prompt to answer."""

    request_id: str
    tokens: TokenArray
    """Prompt token ids, shape [prompt_tokens]."""
    namespace: Namespace
    sampling: SamplingParams = field(default_factory=SamplingParams)
    reuse: bool = True
    """False computes the prompt cold: for baselines and shadow samples."""
    donate: bool = True
    """Whether to keep anything: exact parts as donors and prefix pages, the rest as a chain."""
    policy: str | None = None
    """A recompute policy for this request, overriding the certificate's or the settings'."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StripSegment:
    """A run [start, end) of prompt tokens with one source."""

    start: int
    end: int
    source: TokenSource
    donor_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestReport:
    """What actually happened to one request, confirmed by the engine."""

    request_id: str
    outcome: Outcome
    prompt_tokens: int
    exact_tokens: int = 0
    continued_tokens: int = 0
    """Tokens with approximate K/V from the request's own conversation."""
    reused_tokens: int = 0
    recomputed_tokens: int = 0
    computed_tokens: int = 0
    """Prompt tokens computed, including recomputed ones."""
    approximate: bool = False
    """Whether any of the prompt's K/V differs from a cold prefill's."""
    donor_ids: tuple[str, ...] = ()
    similarity: float | None = None
    policy: str = "none"
    certified: bool = False
    reason: DeclineReason | None = None
    detail: str = ""
    strip: tuple[StripSegment, ...] = ()
    found: tuple[tuple[int, int], ...] = ()
    """Runs [start, end) that donors hold and discovery only reported. All were computed."""
    queue_ms: float = 0.0
    lookup_ms: float = 0.0
    prefill_ms: float = 0.0
    ttft_ms: float = 0.0
    """From submission to the first token."""
    total_ms: float = 0.0
    output_tokens: int = 0
    cost: CostEstimate = field(default_factory=CostEstimate)
    """Cost of the prompt cold and with its plan, executed or not."""
    tokens_by_donor: tuple[tuple[str, int], ...] = ()
    """Tokens each donor gave, or could have given if discovery only reported them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """One alternative at one position."""

    token_id: int
    logprob: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenEvent:
    """One generated token. `text` is new and safe to show (stop strings are withheld)."""

    token_id: int
    text: str
    logprob: float | None = None
    top_logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedEvent:
    """The end of a request; always the last event."""

    reason: FinishReason
    report: RequestReport
    error: str = ""


Event = TokenEvent | FinishedEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """A snapshot for metrics and the dashboard."""

    running: int
    waiting: int
    pool_pages: int
    pool_pages_free: int
    donors: int
    tier_bytes: dict[str, int]
    tier_capacity_bytes: dict[str, int]
    index_bytes: int
    index_capacity_bytes: int
    requests: dict[str, int]
    """Requests by outcome."""
    tokens: dict[str, int]
    """Prompt tokens by source."""
    reasons: dict[str, int]
    """Declines by reason."""
    evictions: int
    registrations: int
    certified: bool = False
    """Whether a quality certificate allows reuse."""
    certificate: str = ""
    """Why reuse is not certified."""
    certificate_until: str = ""
    """Expiry of the certificate, ISO 8601; empty without one."""
    shadow_samples: int = 0
    shadow_divergence: float = 0.0
    """Mean KL between reused and cold next-token distributions, in nats."""
    shadow_disagreement: float = 0.0
    """Mean share of sampled tokens whose top token differs from cold's."""
    suspended_namespaces: int = 0
    chains: int = 0
    """Finished requests whose approximate K/V is kept for their continuation."""
    chain_bytes: int = 0
    promoted_tokens: int = 0
    """Chain tokens computed exactly in idle steps."""
    mode: str = "discovery_only"
    """What the settings ask for: discovery_only, segmented_experimental or segmented."""
    loading: bool = False
    """Whether donor K/V may be loaded now."""
    captures_skipped: int = 0
    """Prompts not stored because the queue was full."""
    captures_waiting: int = 0
