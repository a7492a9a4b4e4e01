"""The facade: takes prompts as token ids and returns plans.

>>> from semblend import Namespace, SemBlendPipeline, Settings
>>> pipeline = SemBlendPipeline(Settings(embedder="none", allow_uncertified=True))
>>> namespace = Namespace.of(model="my-model")
>>> document = list(range(1000, 1500))
>>> pipeline.register_donor("first", [1, 2, 3] + document, namespace)
True
>>> plan = pipeline.plan([9] * 40 + document + [7, 8], namespace)
>>> [(span.donor_start, span.target_start, span.length) for span in plan.spans]
[(4, 41, 499)]
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from typing import Self

from semblend.core.errors import InvalidTokensError, SemBlendError
from semblend.core.faults import clock_jump_s, plant
from semblend.core.ledger import Ledger, LedgerTotals
from semblend.core.namespace import Namespace
from semblend.core.outcomes import DeclineReason
from semblend.core.plan import Evidence, Plan
from semblend.core.settings import DonorSharing, Settings
from semblend.core.tokens import TokenArray, TokenIds, as_token_array
from semblend.discovery.donor_store import DonorStore, Lookup, StoreFollower
from semblend.discovery.meaning import MeaningIndex, Similar
from semblend.discovery.runs import DonorRun
from semblend.planning.boundaries import Boundaries
from semblend.planning.cost import CostModel
from semblend.planning.gates import Decline
from semblend.planning.matches import DonorMatch, best_match, covered_tokens
from semblend.planning.planner import Planner, PlanRequest
from semblend.planning.policies.base import RecomputePolicy, policy_from_spec

logger = logging.getLogger("semblend.pipeline")


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStats:
    """A snapshot for metrics."""

    donors: int
    stored_tokens: int
    index_bytes: int
    index_capacity_bytes: int
    registrations: int
    evictions: int
    embedder: str
    embedded_donors: int
    ledger: LedgerTotals


@dataclass(frozen=True, slots=True, kw_only=True)
class _Terms:
    """Parameters of a plan besides tokens and namespace."""

    exact_tokens: int = 0
    continued_tokens: int = 0
    block_size: int = 1
    whole_blocks: bool = False
    policy: str | None = None
    donates: bool = True


class SemBlendPipeline:
    """Discovers, aligns, gates and plans, in one process. Thread-safe.

    No method raises into a request. A fault becomes a plan that states it, and the request is
    computed cold.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        cost: CostModel | None = None,
        certified_policy: str | None = None,
        uncertified: Decline | None = None,
        certified_until: datetime | None = None,
        boundaries: Boundaries | None = None,
    ) -> None:
        """Build the pipeline. Settings default to the environment's.

        Parameters
        ----------
        certified_policy
            The recompute policy named by the model's quality certificate. Without one, plans
            are for discovery only, unless the settings allow otherwise; `uncertified` is the
            reason they then give.
        certified_until
            When the certificate expires. If the process outlives it, plans are for discovery
            only from then on.
        boundaries
            Where sentences end in the model's token ids, for policies that need it.
        """
        self.settings = Settings.from_env() if settings is None else settings
        plant(self.settings.faults)
        self.ledger = Ledger()
        self._certified = certified_policy is not None
        self._certified_until = certified_until
        self._policy = policy_from_spec(certified_policy or self.settings.recompute_policy)
        secret = self.settings.namespace_secret.encode() or secrets.token_bytes(32)
        # Every lookup and claim needs a namespace's key, and there are few namespaces.
        self._key_of: Callable[[Namespace], bytes] = lru_cache(maxsize=4096)(
            lambda namespace: namespace.key(secret)
        )
        self._store = DonorStore(self.settings.max_donor_bytes)
        self._meaning = MeaningIndex(
            self.settings.embedder, self.settings.embedder_model, self.settings.min_similarity
        )
        self._store.add_eviction_listener(self._meaning.forget)
        self._planner = Planner(
            settings=self.settings,
            cost=CostModel() if cost is None else cost,
            donor_tokens=self._store.donor_tokens,
            boundaries=boundaries,
            uncertified=uncertified,
        )

    @property
    def cost(self) -> CostModel:
        """What plans are estimated with."""
        return self._planner.cost

    @cost.setter
    def cost(self, cost: CostModel) -> None:
        self._planner = replace(self._planner, cost=cost)

    # -- donors ------------------------------------------------------------------

    def register_donor(
        self,
        donor_id: str,
        tokens: TokenIds,
        namespace: Namespace | None,
        *,
        text: str | None = None,
    ) -> bool:
        """Offer a request whose K/V was computed exactly as a donor.

        Returns whether it is held. With `text` it can also be found by meaning; embedding happens
        on another thread.
        """
        if not self.settings.enabled or namespace is None or self._unfit(namespace):
            return False
        try:
            array = as_token_array(tokens)
            key = self.share_key(namespace)
            self._store.register(donor_id, array, key)
        except SemBlendError:
            logger.debug("donor %s not registered", donor_id, exc_info=True)
            return False
        except Exception:
            logger.warning("donor %s not registered", donor_id, exc_info=True)
            return False
        if text:
            self._meaning.learn(donor_id, text, key)
        return True

    def prepare(self) -> bool:
        """Touch a slice of the index before donors need it. False once all of it is in memory."""
        return self.settings.enabled and self._store.prepare()

    def evict(self, donor_id: str) -> bool:
        """Drop a donor whose K/V is gone. False if it was not held."""
        self._meaning.forget(donor_id)
        return self._store.evict(donor_id)

    def clear(self) -> None:
        """Drop every donor."""
        self._meaning.clear()
        self._store.clear()

    def add_eviction_listener(self, listener: Callable[[str], None]) -> None:
        """Call `listener(donor_id)` when a donor was evicted to make room."""
        self._store.add_eviction_listener(listener)

    def follow(self, follower: StoreFollower) -> None:
        """Notify a follower of every donor held or gone, starting with those held now."""
        self._store.follow(follower)

    def holds(self, donor_id: str) -> bool:
        """Whether a donor is held."""
        return donor_id in self._store

    # -- plans -------------------------------------------------------------------

    def plan(
        self,
        tokens: TokenIds,
        namespace: Namespace | None,
        *,
        request_id: str | None = None,
        exact_tokens: int = 0,
        continued_tokens: int = 0,
        block_size: int = 1,
        whole_blocks: bool = False,
        policy: str | None = None,
        donates: bool = True,
    ) -> Plan:
        """Plan which donor spans this prompt can reuse and what to compute, with the reasons.

        Looks only at tokens. Nothing is embedded, so it may be called from a scheduler loop.

        Parameters
        ----------
        request_id
            Opens the request in the ledger; the engine settles it there.
        exact_tokens
            Leading tokens that the engine's own prefix cache holds.
        continued_tokens
            Tokens after those that the request's own chain holds (core/chain.py).
        block_size, whole_blocks
            The engine's block size, and whether it can load only whole blocks.
        policy
            A recompute policy for this request instead of the configured one.
        donates
            Whether the request, computed exactly, would become a donor. Reuse gives that up.
        """
        terms = _Terms(
            exact_tokens=exact_tokens,
            continued_tokens=continued_tokens,
            block_size=block_size,
            whole_blocks=whole_blocks,
            policy=policy,
            donates=donates,
        )
        plan = self._guarded_plan(tokens, namespace, terms, extra=_no_runs)
        if request_id is not None:
            self.ledger.open(request_id, plan)
        return plan

    def find_donor(
        self,
        tokens: TokenIds,
        namespace: Namespace | None,
        *,
        text: str | None = None,
        request_id: str | None = None,
        exact_tokens: int = 0,
        block_size: int = 1,
    ) -> DonorMatch | None:
        """Find the best donor: by tokens or, if those share too little, by meaning.

        Embeds `text` only if tokens cover less than half of the prompt. With `fuzzy_chunks`, donors
        found by meaning are aligned with the prompt, and their identical runs join the plan.
        """
        similar: list[Similar] = []
        aligned: list[DonorRun] = []

        def by_meaning(array: TokenArray, key: bytes, lookup: Lookup) -> list[DonorRun]:
            if text is None or covered_tokens(lookup) * 2 >= array.size:
                return []
            similar.extend(self._meaning.search(text, key))
            if not self.settings.fuzzy_chunks:
                return []
            aligned.extend(self._meaning.align(array, similar, self._store.donor_tokens))
            return aligned

        terms = _Terms(exact_tokens=exact_tokens, block_size=block_size)
        plan = self._guarded_plan(tokens, namespace, terms, extra=by_meaning)
        if similar:
            best = similar[0]
            regions = (
                ()
                if self.settings.exact_materialization_only
                else self._meaning.regions(aligned, self.settings.edit_window_tokens)
            )
            evidence = replace(
                plan.evidence,
                similarity=best.similarity,
                similar_donor_id=best.donor_id,
                similar_regions=regions,
            )
            plan = replace(plan, evidence=evidence)
        if request_id is not None:
            self.ledger.open(request_id, plan)
        return best_match(plan)

    def _guarded_plan(
        self,
        tokens: TokenIds,
        namespace: Namespace | None,
        terms: _Terms,
        *,
        extra: Callable[[TokenArray, bytes, Lookup], list[DonorRun]],
    ) -> Plan:
        """Plan, turning every fault into a refusal."""
        started = time.perf_counter()
        try:
            array = as_token_array(tokens)
        except InvalidTokensError as error:
            return _refused(0, DeclineReason.INVALID_INPUT, str(error))
        size = int(array.size)
        if not self.settings.enabled:
            return _refused(size, DeclineReason.DISABLED, "SEMBLEND_ENABLED is 0")
        if namespace is None:
            return _refused(size, DeclineReason.NO_NAMESPACE, "the request has no namespace")
        if detail := self._unfit(namespace):
            return _refused(size, DeclineReason.INCOMPLETE_NAMESPACE, detail)
        if size < self.settings.min_prompt_tokens:
            return _refused(
                size, DeclineReason.SHORT_PROMPT, f"below {self.settings.min_prompt_tokens} tokens"
            )
        try:
            chosen = self._policy if terms.policy is None else policy_from_spec(terms.policy)
            key = self.share_key(namespace)
            if extra is _no_runs and not self._has_room(size, terms):
                # The next turn of a conversation: there is nothing to look for.
                return self._planned(array, key, Lookup(), (), chosen, terms, started)
            lookup = self._store.lookup(array, key)
            runs = (*lookup.runs, *extra(array, key, lookup))
            plan = self._planned(array, key, lookup, runs, chosen, terms, started)
            self._store.touch(plan.donor_ids)
            return plan
        except SemBlendError as error:
            return _refused(size, DeclineReason.INVALID_INPUT, str(error))
        except Exception as error:
            logger.warning("planning failed; the request is computed cold", exc_info=True)
            return _refused(size, DeclineReason.INTERNAL_ERROR, type(error).__name__)

    def _has_room(self, size: int, terms: _Terms) -> bool:
        """Whether the shortest run fits into what is not in place yet."""
        left = size - 1 - terms.exact_tokens - terms.continued_tokens
        return left >= self._planner.shortest_run

    def _unfit(self, namespace: Namespace) -> str:
        """Why requests of a namespace neither reuse nor donate; empty if they may."""
        if not namespace.is_complete:
            return f"unknown parts: {', '.join(namespace.unknown_parts)}"
        if self.settings.share_donors is DonorSharing.NAMED and not namespace.names_principal:
            return "the request names no principal (SEMBLEND_SHARE_DONORS is named)"
        return ""

    def _planned(
        self,
        tokens: TokenArray,
        key: bytes,
        lookup: Lookup,
        runs: tuple[DonorRun, ...],
        policy: RecomputePolicy,
        terms: _Terms,
        started: float,
    ) -> Plan:
        evidence = Evidence(
            fingerprint_hits=lookup.fingerprint_hits,
            matched_tokens=covered_tokens(lookup),
            candidate_donors=len({run.donor_id for run in runs}),
        )
        planner, expired = self._planner, self._has_expired()
        if expired:
            detail = f"the certificate expired on {self._certified_until}"
            planner = replace(planner, uncertified=(DeclineReason.CERTIFICATE_EXPIRED, detail))
        size = int(tokens.size)
        exact = min(max(0, terms.exact_tokens), size)
        plan = planner.plan(
            PlanRequest(
                tokens=tokens,
                namespace=key.hex(),
                runs=runs,
                policy=policy,
                # A policy chosen by the request is not certified.
                certified=self._certified and not expired and policy is self._policy,
                evidence=evidence,
                exact_tokens=exact,
                continued_tokens=min(max(0, terms.continued_tokens), size - exact),
                block_size=terms.block_size,
                whole_blocks=terms.whole_blocks,
                donates=terms.donates,
            )
        )
        lookup_ms = (time.perf_counter() - started) * 1e3
        return replace(plan, evidence=replace(evidence, lookup_ms=lookup_ms))

    def objection(self, policy: str | None = None) -> Decline | None:
        """Why approximate K/V may not be used now, or None if it may.

        `policy` is one chosen by the request, which no certificate covers.
        """
        if not self.settings.enabled:
            return DeclineReason.DISABLED, "SEMBLEND_ENABLED is 0"
        if self.settings.discovery_only:
            return DeclineReason.DISCOVERY_ONLY, "SEMBLEND_DISCOVERY_ONLY is set"
        if self.settings.allow_uncertified or (self.certified and policy is None):
            return None
        return DeclineReason.NO_CERTIFICATE, "no valid certificate for this policy"

    @property
    def certified(self) -> bool:
        """Whether a certificate currently allows reuse."""
        return self._certified and not self._has_expired()

    @property
    def may_load(self) -> bool:
        """Whether a plan can currently be executable. If not, donors' K/V is not needed."""
        settings = self.settings
        allowed = settings.enabled and not settings.discovery_only
        return allowed and (self.certified or settings.allow_uncertified)

    def _has_expired(self) -> bool:
        until = self._certified_until
        return until is not None and time.time() + clock_jump_s() >= until.timestamp()

    # -- the rest ----------------------------------------------------------------

    def share_key(self, namespace: Namespace) -> bytes:
        """The namespace's key under this pipeline's secret, used to file K/V in caches and stores.

        Without the secret, nobody can tell what a stored object's name stands for, or make prompts
        of different namespaces collide.

        Raises
        ------
        NamespaceError
            If a part of the namespace is unknown.
        """
        return self._key_of(namespace)

    def stats(self) -> PipelineStats:
        """Current counts and sizes."""
        return PipelineStats(
            donors=len(self._store),
            stored_tokens=self._store.stored_tokens,
            index_bytes=self._store.used_bytes,
            index_capacity_bytes=self._store.max_bytes,
            registrations=self._store.registrations,
            evictions=self._store.evictions,
            embedder=self._meaning.embedder_name,
            embedded_donors=len(self._meaning),
            ledger=self.ledger.totals(),
        )

    def wait_until_learned(self, timeout_s: float = 60.0) -> bool:
        """Wait until every donor offered with text is embedded. For tests and batch jobs."""
        return self._meaning.wait(timeout_s)

    def close(self) -> None:
        """Stop the embedding thread. The pipeline still plans by tokens."""
        self._meaning.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _no_runs(tokens: TokenArray, key: bytes, lookup: Lookup) -> list[DonorRun]:
    return []


def _refused(prompt_tokens: int, reason: DeclineReason, detail: str) -> Plan:
    return Plan(namespace="", prompt_tokens=prompt_tokens, reason=reason, detail=detail)
