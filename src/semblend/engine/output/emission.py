"""From logits to events: chooses tokens, emits text and ends requests."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from semblend.core.outcomes import DeclineReason
from semblend.engine.admission import Admission
from semblend.engine.api import (
    FinishedEvent,
    FinishReason,
    RequestReport,
    TokenEvent,
    TokenSource,
)
from semblend.engine.cache.chains import Chains
from semblend.engine.cache.exact_kv import ExactKv
from semblend.engine.cache.pool import PagedPool
from semblend.engine.cache.prefix_cache import PrefixCache
from semblend.engine.output.sampling import choose
from semblend.engine.reporting import report_of
from semblend.engine.sequence import Phase, Sequence
from semblend.engine.shadow import Shadow

logger = logging.getLogger("semblend.engine")


class Emission:
    """Ends requests: the last event, the settlement and the return of pages.

    Only exactly computed K/V goes to the prefix cache and to donors. The rest goes to the chains,
    where only the same conversation finds it.
    """

    def __init__(
        self,
        *,
        pool: PagedPool,
        prefixes: PrefixCache | None,
        admission: Admission,
        eos_token_ids: frozenset[int],
        donate: Callable[[ExactKv], None],
        min_donor_tokens: int,
        finished: Callable[[Sequence], None],
        certified: bool,
        shadow: Shadow | None = None,
        chains: Chains | None = None,
    ) -> None:
        """`min_donor_tokens` is the shortest prefix that a later request could find."""
        self._pool = pool
        self._prefixes = prefixes
        self._admission = admission
        self._eos = eos_token_ids
        self._donate = donate
        self._min_donor_tokens = min_donor_tokens
        self._chains = chains
        self._finished = finished
        self._certified = certified
        self._shadow = shadow
        self._tokens: Counter[TokenSource] = Counter()

    def token(self, sequence: Sequence, logits: torch.Tensor) -> None:
        """Choose the next token from its logits, [vocabulary], and notify the caller."""
        first = sequence.phase is Phase.PREFILL
        if first:
            sequence.phase, sequence.prefilled_at = Phase.DECODE, time.perf_counter()
        if self._shadow is not None:
            with _beside(sequence, "a shadow sample"):
                self._shadow.observe(sequence, logits)
        params = sequence.request.sampling
        try:
            allowed = None if sequence.grammar is None else sequence.grammar.allowed()
        except Exception as error:
            # If a grammar cannot continue, only its own answer ends.
            logger.warning("request %s: its grammar failed", sequence.request.request_id)
            self.finish(sequence, FinishReason.ERROR, f"{type(error).__name__}: {error}")
            return
        choice = choose(
            logits,
            params,
            sequence.generator,
            prompt=sequence.request.tokens,
            output=sequence.output_ids,
            allowed=allowed,
        )
        sequence.output_ids.append(choice.token_id)
        ended = choice.token_id in params.stop_token_ids or (
            choice.token_id in self._eos and not params.ignore_eos
        )
        complete = (
            not ended and sequence.grammar is not None and sequence.grammar.take(choice.token_id)
        )
        text, stopped = ("", False)
        if not ended:
            text, stopped = sequence.stops.push(sequence.decoder.push(choice.token_id))
        reason = None
        if ended or stopped or complete:
            reason = FinishReason.STOP
        elif len(sequence.output_ids) >= sequence.max_new_tokens:
            reason = FinishReason.LENGTH
        if reason is not None and not stopped:
            rest, stopped = sequence.stops.push(sequence.decoder.flush())
            text += rest if stopped else rest + sequence.stops.flush()
            reason = FinishReason.STOP if stopped else reason
        if not sequence.first_token_at:
            sequence.first_token_at = time.perf_counter()
            sequence.handle.prompt_report = report_of(sequence, certified=self._certified)
        sequence.handle.push(
            TokenEvent(
                token_id=choice.token_id,
                text=text,
                logprob=choice.logprob,
                top_logprobs=choice.top,
            )
        )
        if first:
            with _beside(sequence, "a donor"):
                self._share(sequence)
        if reason is not None:
            self.finish(sequence, reason)

    def finish(self, sequence: Sequence, reason: FinishReason, error: str = "") -> None:
        """End a request in any phase: settle, publish, release pages, notify the caller."""
        if sequence.phase is Phase.FINISHED:
            return
        sequence.drop_load()
        if sequence.phase is Phase.DECODE:
            self._publish(sequence, sequence.length - 1)
            with _beside(sequence, "what can be continued"):
                self._keep(sequence, failed=reason is FinishReason.ERROR)
        else:
            # The prompt was never fully computed, so nothing was reused.
            sequence.plan = None
            sequence.account.continued_tokens = 0
            if reason is FinishReason.CANCELLED:
                sequence.account.decline(DeclineReason.CANCELLED)
        sequence.phase = Phase.FINISHED
        if self._shadow is not None:
            with _beside(sequence, "a shadow sample"):
                self._shadow.ended(sequence)
        report = report_of(sequence, certified=self._certified)
        if sequence.admitted_at:
            self._admission.settle(sequence)
            self._count(report)
        if sequence.table is not None:
            self._pool.allocator.release(sequence.table.pages)
        self._finished(sequence)
        sequence.handle.push(FinishedEvent(reason=reason, report=report, error=error))

    def tokens_by_source(self) -> dict[str, int]:
        """Prompt tokens by source, for all admitted requests that have ended."""
        return {source.value: self._tokens[source] for source in TokenSource}

    def _count(self, report: RequestReport) -> None:
        self._tokens[TokenSource.EXACT] += report.exact_tokens
        self._tokens[TokenSource.CONTINUED] += report.continued_tokens
        self._tokens[TokenSource.REUSED] += report.reused_tokens
        self._tokens[TokenSource.RECOMPUTED] += report.recomputed_tokens
        self._tokens[TokenSource.COMPUTED] += report.computed_tokens - report.recomputed_tokens

    def _share(self, sequence: Sequence) -> None:
        """Share the exact parts, now that the prompt has its K/V and the caller the first token."""
        self._publish(sequence, sequence.prompt_tokens)
        self._offer(sequence, min(sequence.prompt_tokens, sequence.exact_until))

    def _keep(self, sequence: Sequence, *, failed: bool) -> None:
        """Keep the finished request: as a donor if all of it is exact, else as a chain."""
        if sequence.tainted:
            if self._chains is not None and not failed:
                self._chains.keep(sequence)
        elif len(sequence.output_ids) > self._min_donor_tokens:
            self._offer(sequence, sequence.length - 1)

    def _offer(self, sequence: Sequence, exact: int) -> None:
        """Donate the first `exact` tokens, if they contain anything new.

        An exact prefix was already donated by the request that computed it.
        """
        table, key = sequence.table, sequence.share_key
        if table is None or key is None or not sequence.request.donate:
            return
        new = exact - sequence.exact_tokens
        if exact < sequence.prompt_tokens and new < self._min_donor_tokens:
            return
        self._donate(
            ExactKv(
                name=sequence.request.request_id,
                tokens=sequence.tokens_between(0, exact),
                table=table,
                share_key=key,
                namespace=sequence.request.namespace,
            )
        )

    def _publish(self, sequence: Sequence, computed: int) -> None:
        """Publish the exact part of the first `computed` tokens. A failure harms no request."""
        if self._prefixes is None or sequence.table is None or sequence.share_key is None:
            return
        if not sequence.request.donate:
            return
        end = min(computed, sequence.exact_until)
        try:
            self._prefixes.publish(
                sequence.share_key, sequence.tokens_between(0, end), sequence.table.pages
            )
        except Exception:
            logger.exception("pages of %s were not published", sequence.request.request_id)


@contextmanager
def _beside(sequence: Sequence, what: str) -> Iterator[None]:
    """Guard work done for other requests: it must not cost this one its answer."""
    try:
        yield
    except Exception:
        logger.warning("request %s: lost %s", sequence.request.request_id, what, exc_info=True)
