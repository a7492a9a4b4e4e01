"""Gives a waiting request its pages: exact prefix first, then its own chain, a plan, or cold.

Nothing here can fail a request. If looking up or loading donors fails, the reason is recorded and
the tokens are computed.
"""

from __future__ import annotations

import logging
import time
from collections import deque

import numpy as np

from semblend.core.account import Reuse
from semblend.core.chain import Follower
from semblend.core.errors import CorruptSegmentError, DonorError
from semblend.core.outcomes import DeclineReason, Outcome
from semblend.core.plan import Hole, Plan
from semblend.engine.cache.chains import Chain, Chains
from semblend.engine.cache.pages import PageIds, PageTable
from semblend.engine.cache.pool import PagedPool
from semblend.engine.cache.prefix_cache import PrefixCache, take_pages
from semblend.engine.layer_load import start_load
from semblend.engine.materialise import DonorSource, load_spans
from semblend.engine.model import LoadedModel
from semblend.engine.probes import PoolProbe
from semblend.engine.sequence import Phase, Sequence
from semblend.engine.shadow import Shadow
from semblend.engine.streams import SideStream
from semblend.kv.depth_drift import DepthDrift
from semblend.pipeline import SemBlendPipeline
from semblend.planning.boundaries import Boundaries
from semblend.planning.depth import declined_without_table, drift_for
from semblend.planning.policies.base import policy_from_spec
from semblend.planning.recompute import left_to_compute, plan_runs, probed

logger = logging.getLogger("semblend.engine")


class Admission:
    """Gives a request its pages and fills them as far as possible without compute.

    A request gets room for its whole output at once. Other requests can then never starve it, and
    its pages are contiguous.
    """

    def __init__(
        self,
        *,
        model: LoadedModel,
        pool: PagedPool,
        prefixes: PrefixCache | None,
        pipeline: SemBlendPipeline,
        donors: DonorSource,
        boundaries: Boundaries | None = None,
        shadow: Shadow | None = None,
        drift: DepthDrift | None = None,
        layerwise: bool | None = None,
        chains: Chains | None = None,
    ) -> None:
        """`layerwise` leaves copying to the first pass; None means on a GPU only.

        `drift`, on the pool's device, is the table for policies that shift depths.
        """
        self._chains = chains
        self._drift = drift
        self._boundaries = boundaries
        self._shadow = shadow
        self._model = model
        self._pool = pool
        self._prefixes = prefixes
        self._pipeline = pipeline
        self._donors = donors
        self._layerwise = pool.data.is_cuda if layerwise is None else layerwise
        self._side = SideStream(pool.data.device)

    def pages_needed(self, sequence: Sequence) -> int:
        """Pages for the prompt and the longest output. The last output token needs no K/V."""
        return self._pool.pages_for(sequence.prompt_tokens + sequence.max_new_tokens - 1)

    def try_admit(self, sequence: Sequence) -> bool:
        """Admit the request if there is room now."""
        shared = self._match(sequence)
        sequence.account.exact_tokens = len(shared) * self._pool.page_size
        shared = self._continue(sequence, shared)
        fresh = None
        try:
            count = self.pages_needed(sequence) - len(shared)
            spare = self._prefixes, self._chains, self._prefixes
            fresh = take_pages(self._pool.allocator, *spare, count=count)
        finally:
            if fresh is None:
                self._pool.allocator.release(shared)
        if fresh is None:
            return False
        sequence.admitted_at = time.perf_counter()
        sequence.table = PageTable(
            pages=np.concatenate((shared, fresh)), page_size=self._pool.page_size
        )
        sequence.phase = Phase.PREFILL
        may_plan = sequence.request.reuse and not sequence.cold
        plan = self._plan(sequence) if may_plan else None
        is_loaded = plan is not None and plan.executable and self._load(sequence, plan)
        if plan is None or not is_loaded or not self._refine(sequence, plan):
            compute_from_tokens(sequence)
        return True

    def settle(self, sequence: Sequence) -> None:
        """Report what happened to the prompt to the account, when the request ends."""
        if sequence.plan is not None:
            sequence.account.confirmed(Reuse.of(sequence.plan))
        sequence.account.ended()

    def withdraw(self, sequence: Sequence) -> None:
        """Take back the pages of a request that continued a chain. It is admitted again, cold.

        The chain's pages are shared and must not be written, so the request needs other pages.
        """
        sequence.drop_load()
        if sequence.table is not None:
            self._pool.allocator.release(sequence.table.pages)
        if self._chains is not None and sequence.chain is not None:
            self._chains.drop(sequence.chain)  # its K/V may be what failed
        sequence.table, sequence.plan, sequence.chain = None, None, None
        sequence.account.continued_tokens, sequence.turns = 0, 0
        sequence.cold = True
        sequence.phase = Phase.WAITING

    def _continue(self, sequence: Sequence, shared: PageIds) -> PageIds:
        """The exact pages and, if the request continues a chain further, that chain's."""
        sequence.account.continued_tokens, sequence.turns, sequence.chain = 0, 0, None
        try:
            found = self._find_chain(sequence)
        except Exception:
            logger.warning(
                "request %s: could not look up its chain; computing it",
                sequence.request.request_id,
                exc_info=True,
            )
            return shared
        exact = sequence.exact_tokens
        if found is None or found[1] <= exact:
            return shared
        chain, held = found
        if len(shared) < chain.first_page:
            return shared  # what is exact before it was evicted
        first = chain.first_page
        more = chain.pages[len(shared) - first : held // self._pool.page_size - first]
        self._pool.allocator.retain(more)
        sequence.account.exact_tokens = max(exact, min(held, chain.link.exact_tokens))
        sequence.account.continued_tokens = held - sequence.exact_tokens
        if sequence.continued_tokens:
            sequence.turns, sequence.chain = chain.link.turns, chain
        return np.concatenate((shared, more))

    def _find_chain(self, sequence: Sequence) -> tuple[Chain, int] | None:
        request, key = sequence.request, sequence.share_key
        if self._chains is None or key is None or not request.reuse or sequence.cold:
            return None
        if self._shadow is not None and self._shadow.objection(key) is not None:
            return None
        if self._pipeline.objection(request.policy) is not None:
            return None
        return self._chains.find(
            Follower(share_key=key, tokens=request.tokens, policy=request.policy)
        )

    def _match(self, sequence: Sequence) -> PageIds:
        if self._prefixes is None or sequence.share_key is None or not sequence.request.reuse:
            return np.empty(0, dtype=np.int32)
        try:
            return self._prefixes.match(sequence.share_key, sequence.request.tokens)
        except Exception:
            logger.warning(
                "request %s: could not look up exact prefixes; computing them",
                sequence.request.request_id,
                exc_info=True,
            )
            return np.empty(0, dtype=np.int32)

    def _plan(self, sequence: Sequence) -> Plan | None:
        """Make a plan and record it in the ledger."""
        request = sequence.request
        started = time.perf_counter()
        try:
            plan = self._pipeline.plan(
                request.tokens,
                request.namespace,
                request_id=request.request_id,
                exact_tokens=sequence.exact_tokens,
                continued_tokens=sequence.continued_tokens,
                policy=request.policy,
                donates=request.donate,
            )
        except Exception as error:
            logger.warning("request %s: lookup failed", request.request_id, exc_info=True)
            sequence.account.decline(DeclineReason.INTERNAL_ERROR, _describe(error))
            return None
        finally:
            sequence.lookup_ms = (time.perf_counter() - started) * 1e3
        plan = declined_without_table(plan, has_table=self._drift is not None)
        objection = None if self._shadow is None else self._shadow.objection(sequence.share_key)
        if plan.executable and objection is not None:
            plan = plan.declined(DeclineReason.SHADOW_DIVERGED, objection)
        if plan.executable and (dear := self._next_turn(sequence, plan)):
            plan = plan.declined(DeclineReason.NOT_WORTH_IT, dear)
        sequence.account.decline(plan.reason, plan.detail)
        sequence.planned = plan
        sequence.policy = plan.policy
        sequence.similarity = plan.evidence.similarity
        if plan.reason is not None and plan.reason.outcome is Outcome.DISCOVERY_ONLY:
            sequence.found = tuple((span.target_start, span.target_end) for span in plan.copies)
        return plan

    def _next_turn(self, sequence: Sequence, plan: Plan) -> str:
        """Why this plan makes the next turn of its conversation too dear, or nothing.

        If chains have no room for all of the request, the next turn computes again what this one
        computes over approximate K/V. A prefix cache would have it.
        """
        first = plan.first_approximate_token
        if first is None or plan.continued_tokens or not sequence.request.donate:
            return ""
        kept = first if self._chains is None else self._chains.most_tokens(first)
        if plan.prompt_tokens <= kept:
            return ""
        lost = self._pipeline.cost.computed_after(plan, max(first, kept))
        if 2 * plan.exact_tokens < plan.prompt_tokens and plan.cost.saved >= lost:
            return ""  # hardly a conversation yet
        return f"cannot be continued: the next turn would compute {lost:.0f} again"

    def _load(self, sequence: Sequence, plan: Plan) -> bool:
        """Copy the plan's spans, or start to. False, with the reason noted, if that failed."""
        table, tokens = sequence.table, sequence.request.tokens
        if table is None:  # pragma: no cover - try_admit sets it
            return False
        pool, rotary, donors = self._pool, self._model.rotary, self._donors
        policy = policy_from_spec(plan.policy)
        try:
            drift = drift_for(policy, self._drift)
            if self._layerwise:
                sequence.loading = start_load(
                    plan,
                    tokens,
                    table=table,
                    pool=pool,
                    rotary=rotary,
                    donors=donors,
                    stream=self._side.stream,
                    drift=drift,
                )
                if policy.dynamic:
                    # Probes read the copies before the first pass, so place them now.
                    sequence.loading.place(pool.shape.layers)
            else:
                load_spans(
                    plan,
                    tokens,
                    table=table,
                    pool=pool,
                    rotary=rotary,
                    donors=donors,
                    drift=drift,
                )
        except Exception as error:
            logger.warning(
                "request %s: donor K/V could not be loaded; computing it",
                sequence.request.request_id,
                exc_info=True,
            )
            sequence.drop_load()
            sequence.account.decline(_load_failure(error), _describe(error))
            return False
        return True

    def _refine(self, sequence: Sequence, plan: Plan) -> bool:
        """Set the plan and what is left to compute, now that the spans are in place.

        A dynamic policy adds to the plan. Its probe is one pass over the holes and the tail,
        through all layers at most, between two steps; what it computed is not computed again up to
        the first token that the policy adds. False, with the reason noted, if nothing is left to
        reuse or the probe failed.
        """
        policy = policy_from_spec(plan.policy)
        if not policy.dynamic or sequence.table is None:
            sequence.plan, sequence.pending = plan, deque(plan_runs(plan))
            return True
        tokens = sequence.request.tokens
        probe = PoolProbe(
            model=self._model, pool=self._pool, table=sequence.table, tokens=tokens, plan=plan
        )
        try:
            refined = probed(plan, tokens, policy, probe, self._boundaries)
        except Exception as error:
            logger.warning(
                "request %s: the probe of %s failed; computing it",
                sequence.request.request_id,
                plan.policy,
                exc_info=True,
            )
            sequence.account.decline(DeclineReason.MATERIALISATION_FAILED, _describe(error))
            return False
        if not refined.reused_tokens:
            sequence.account.decline(
                DeclineReason.POLICY_DECLINED, f"{plan.policy} recomputes every reusable token"
            )
            return False
        left = left_to_compute(plan, refined) if probe.filled else plan_runs(refined)
        last = Hole(refined.prompt_tokens - 1, refined.prompt_tokens)  # its logits are wanted
        sequence.plan, sequence.pending = refined, deque(left or (last,))
        return True


def compute_from_tokens(sequence: Sequence) -> None:
    """Discard the plan and compute everything after the shared pages from tokens."""
    sequence.drop_load()
    sequence.plan = None
    sequence.pending = deque((Hole(sequence.placed_tokens, sequence.length),))
    sequence.phase = Phase.PREFILL


def _load_failure(error: Exception) -> DeclineReason:
    if isinstance(error, CorruptSegmentError):
        return DeclineReason.CORRUPT_DONOR
    if isinstance(error, DonorError):
        return DeclineReason.DONOR_GONE
    return DeclineReason.MATERIALISATION_FAILED


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
