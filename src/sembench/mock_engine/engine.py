"""The mock engine: what a prompt costs, what is reused, and what is reported.

Truth and report are separate values on purpose. For an honest engine they are equal; each
cheat makes them differ in one place.
"""

from __future__ import annotations

from dataclasses import dataclass

from sembench.mock_engine.answers import answer
from sembench.mock_engine.donors import FoundSpan, MockDonorStore, StoredDonor
from sembench.mock_engine.exact_cache import ExactPrefixCache
from sembench.mock_engine.settings import Cheat, MockSettings
from sembench.tokenizers import StableRegexTokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatement:
    """What the engine reports about a request: in its response, or in its log and metrics."""

    outcome: str
    exact_tokens: int
    reused_tokens: int
    spans: tuple[FoundSpan, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmittedRequest:
    """An admitted request: the answer to stream and the compute it costs first."""

    request_id: str
    namespace: str
    prompt_tokens: int
    answer: str
    prefill_ms: float
    said: EngineStatement
    """Reported in the response."""
    logged: EngineStatement
    """Reported in log, audit and metrics."""


class MockEngine:
    """Owns the caches; `admit` decides everything about a request at once."""

    def __init__(self, settings: MockSettings) -> None:
        self.settings = settings
        self._tokenizer = StableRegexTokenizer()
        self._exact = ExactPrefixCache(
            block_size=settings.block_size, capacity_blocks=settings.prefix_cache_blocks
        )
        self._donors = MockDonorStore(
            min_span_tokens=settings.min_span_tokens, max_donors=settings.max_donors
        )
        self._poisoned: dict[str, str] = {}

    @property
    def donors(self) -> int:
        return len(self._donors)

    def flush(self) -> None:
        """Drop every cached prefix and every donor."""
        self._exact.clear()
        self._donors.clear()
        self._poisoned.clear()

    def admit(self, request_id: str, text: str, namespace: str) -> AdmittedRequest:
        """Plan, account for and store one prompt."""
        settings = self.settings
        tokens = self._tokenizer.encode(text)
        exact = self._exact.match(namespace, tokens) if settings.prefix_cache else 0
        found = self._donors.find(namespace, tokens, exact) if settings.semantic else ()
        loads = (
            bool(found) and not settings.discovery_only and settings.cheat is not Cheat.CLAIM_REUSE
        )
        reused = sum(span.length for span in found) if loads else 0
        truth = EngineStatement(
            outcome=_outcome(exact, found, loads),
            exact_tokens=exact,
            reused_tokens=reused,
            spans=found,
        )
        computed = len(tokens) - exact - reused
        if settings.cheat is Cheat.FAST_NEGATIVES and self._donors.has_any(namespace):
            computed = min(computed, settings.block_size)
        admitted = AdmittedRequest(
            request_id=request_id,
            namespace=namespace,
            prompt_tokens=len(tokens),
            answer=self._answer(text, namespace, truth),
            prefill_ms=settings.lookup_ms + computed * settings.prefill_ms_per_token,
            said=self._claim(truth),
            logged=truth,
        )
        self._remember(request_id, text, namespace, truth)
        return admitted

    def _claim(self, truth: EngineStatement) -> EngineStatement:
        if self.settings.cheat is not Cheat.CLAIM_REUSE or not truth.spans:
            return truth
        return EngineStatement(
            outcome="materialised",
            exact_tokens=truth.exact_tokens,
            reused_tokens=sum(span.length for span in truth.spans),
            spans=truth.spans,
        )

    def _answer(self, text: str, namespace: str, truth: EngineStatement) -> str:
        if truth.exact_tokens and (evidence := self._poisoned.get(namespace + text)) is not None:
            return answer(text, evidence=evidence)
        if self.settings.cheat is Cheat.LEAK_DONOR_FACTS and truth.reused_tokens:
            return answer(text, evidence=self._donor_text(truth))
        return answer(text)

    def _donor_text(self, truth: EngineStatement) -> str:
        held = (self._donors.get(span.donor_id) for span in truth.spans)
        return "\n".join(dict.fromkeys(donor.text for donor in held if donor is not None))

    def _remember(self, request_id: str, text: str, namespace: str, truth: EngineStatement) -> None:
        """Store only what was computed exactly: K/V after a reused span is approximate."""
        tokens = self._tokenizer.encode(text)
        poisons = self.settings.cheat is Cheat.POISON_EXACT_CACHE and truth.reused_tokens > 0
        if truth.reused_tokens and not poisons:
            tokens = tokens[: truth.spans[0].target_start]
        if self.settings.prefix_cache:
            self._exact.insert(namespace, tokens)
        if poisons:
            self._poisoned[namespace + text] = self._donor_text(truth)
        elif not truth.reused_tokens:
            self._donors.register(
                StoredDonor(donor_id=request_id, namespace=namespace, tokens=tokens, text=text)
            )


def _outcome(exact: int, found: tuple[FoundSpan, ...], loads: bool) -> str:
    if loads:
        return "materialised"
    if found:
        return "discovery_only"
    return "exact_prefix" if exact else "cold"
