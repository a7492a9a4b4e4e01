"""Chooses a worker and explains why.

For every healthy worker this compares: its queue plus a prefill of everything except an
exact prefix it holds; the same with its donors; and the same with a donor fetched from a
shared store. The best option is taken if it beats the engine's own router by enough.
Otherwise the request is left to that router.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from semblend.core.outcomes import Outcome
from semblend.fleet.directory.answers import Found, WorkerHolding
from semblend.fleet.placement.expected_time import FleetCost


class Choice(StrEnum):
    """What decided the placement."""

    EXACT_PREFIX = "exact_prefix"
    DONOR = "donor"
    TRANSFER = "transfer"
    ROUTER = "router"

    @property
    def outcome(self) -> Outcome:
        """The outcome a router may claim. Never materialized: only an engine confirms that."""
        return Outcome.PLACEMENT if self in (Choice.DONOR, Choice.TRANSFER) else Outcome.COLD


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLoad:
    """What is known about a worker's rank now."""

    worker_id: str
    dp_rank: int = 0
    queued_tokens: int = 0
    """Prompt tokens queued or running ahead of a new request."""
    healthy: bool = True
    prefix_tokens: int = 0
    """Exact prefix known to the engine's own router."""
    resident_tokens: int | None = None
    """Exact prefix in the engine's own cache, by its K/V events. None if nobody follows them;
    the worker's donors are then the best evidence."""
    speed: float = 1.0
    """Relative to a typical worker of the fleet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One possible placement."""

    choice: Choice
    worker_id: str
    dp_rank: int
    queue_s: float
    prefill_s: float
    transfer_s: float = 0.0
    prefix_tokens: int = 0
    covered_tokens: int = 0
    donor_key: int | None = None

    @property
    def expected_s(self) -> float:
        """Expected time to the first token."""
        return self.queue_s + self.prefill_s + self.transfer_s

    def explain(self) -> str:
        """One line for people."""
        parts = [f"queue {self.queue_s * 1e3:.1f} ms", f"prefill {self.prefill_s * 1e3:.1f} ms"]
        if self.transfer_s:
            parts.append(f"transfer {self.transfer_s * 1e3:.1f} ms")
        held = f"prefix {self.prefix_tokens}, covered {self.covered_tokens} tokens"
        return (
            f"{self.choice.value} {self.worker_id}/{self.dp_rank}: "
            f"{self.expected_s * 1e3:.1f} ms ({' + '.join(parts)}; {held})"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The choice and everything it was chosen from."""

    choice: Choice
    option: Option | None
    """What was chosen; None if there is no healthy worker."""
    router: Option | None
    """What the engine's own router is expected to do."""
    options: tuple[Option, ...]
    reason: str

    @property
    def pinned(self) -> Option | None:
        """The worker to pin the request to; None leaves it to the router."""
        return None if self.choice is Choice.ROUTER else self.option

    def explain(self) -> str:
        """The reasons, for people: the decision first, then every option from best to worst."""
        ranked = sorted(self.options, key=lambda option: option.expected_s)
        return "\n".join([self.reason, *(option.explain() for option in ranked)])


def choose(
    prompt_tokens: int,
    found: Found,
    workers: Sequence[WorkerLoad],
    cost: FleetCost,
    *,
    can_reuse: bool = True,
    can_transfer: bool = False,
    router_worker: tuple[str, int] | None = None,
) -> Placement:
    """Choose a worker for a prompt.

    Parameters
    ----------
    can_reuse
        Whether the workers load donors at all; otherwise only exact prefixes count.
    can_transfer
        Whether they load donors from a shared store.
    router_worker
        The worker the engine's router would take; if None, the one with the least expected time.
    """
    healthy = [worker for worker in workers if worker.healthy]
    holdings = {(held.worker_id, held.dp_rank): held for held in found.holdings}
    if not healthy:
        return Placement(
            choice=Choice.ROUTER, option=None, router=None, options=(), reason="no healthy worker"
        )
    healthy = _worth_a_look(healthy, holdings, router_worker)
    plain = [_plain(prompt_tokens, worker, cost) for worker in healthy]
    named = [o for o in plain if (o.worker_id, o.dp_rank) == router_worker]
    router = named[0] if named else min(plain, key=lambda option: option.expected_s)
    options = [router]
    for worker in healthy:
        held = holdings.get((worker.worker_id, worker.dp_rank))
        options += _options(prompt_tokens, worker, held, found, cost, can_reuse, can_transfer)
    best = min(options, key=lambda option: option.expected_s)
    gain = router.expected_s - best.expected_s
    needed = max(cost.min_gain_s, cost.min_gain_share * router.expected_s)
    if best is router or gain < needed:
        reason = "left to the router: " + (
            "no worker holds enough of the prompt"
            if best is router
            else f"{best.choice.value} would gain {gain * 1e3:.1f} ms, {needed * 1e3:.1f} needed"
        )
        return Placement(
            choice=Choice.ROUTER,
            option=router,
            router=router,
            options=tuple(options),
            reason=reason,
        )
    return Placement(
        choice=best.choice,
        option=best,
        router=router,
        options=tuple(options),
        reason=(
            f"{best.choice.value} at {best.worker_id}/{best.dp_rank} gains "
            f"{gain * 1e3:.1f} ms over the router's {router.worker_id}/{router.dp_rank}"
        ),
    )


def _worth_a_look(
    workers: list[WorkerLoad],
    holdings: dict[tuple[str, int], WorkerHolding],
    router_worker: tuple[str, int] | None,
) -> list[WorkerLoad]:
    """Workers that hold something, the router's choice, and the least busy of the others.

    Workers that hold nothing differ only by their queues, so a thousand of them are one option.
    """
    special: list[WorkerLoad] = []
    others: list[WorkerLoad] = []
    for worker in workers:
        name = (worker.worker_id, worker.dp_rank)
        resident = worker.prefix_tokens or worker.resident_tokens
        notable = name in holdings or resident or name == router_worker
        (special if notable else others).append(worker)
    if others:
        # By queue, then by speed: of two idle ones, the faster.
        special.append(min(others, key=lambda w: (w.queued_tokens / w.speed, -w.speed)))
    return special


def _plain(prompt_tokens: int, worker: WorkerLoad, cost: FleetCost) -> Option:
    """What an ordinary router gets: the queue plus a prefill after the prefix it knows."""
    prefix = min(worker.prefix_tokens, prompt_tokens - 1)
    return Option(
        choice=Choice.ROUTER,
        worker_id=worker.worker_id,
        dp_rank=worker.dp_rank,
        queue_s=cost.queue_s(worker.queued_tokens) / worker.speed,
        prefill_s=cost.prefill_s(prompt_tokens, prefix, prefix) / worker.speed,
        prefix_tokens=prefix,
        covered_tokens=prefix,
    )


def _options(
    prompt_tokens: int,
    worker: WorkerLoad,
    held: WorkerHolding | None,
    found: Found,
    cost: FleetCost,
    can_reuse: bool,
    can_transfer: bool,
) -> list[Option]:
    exact = worker.resident_tokens
    if exact is None:
        exact = 0 if held is None else held.prefix_tokens
    prefix = min(max(worker.prefix_tokens, exact), prompt_tokens - 1)

    def option(choice: Choice, covered: int, donor: int | None, transfer_s: float = 0.0) -> Option:
        return Option(
            choice=choice,
            worker_id=worker.worker_id,
            dp_rank=worker.dp_rank,
            queue_s=cost.queue_s(worker.queued_tokens) / worker.speed,
            prefill_s=cost.prefill_s(prompt_tokens, prefix, covered) / worker.speed,
            transfer_s=transfer_s,
            prefix_tokens=prefix,
            covered_tokens=covered,
            donor_key=donor,
        )

    options: list[Option] = []
    if prefix:
        donor = held.donor_key if held is not None else None
        options.append(option(Choice.EXACT_PREFIX, prefix, donor))
    if can_reuse and held is not None and held.covered_tokens > prefix:
        options.append(option(Choice.DONOR, held.covered_tokens, held.donor_key))
    shared = found.shared
    if can_reuse and can_transfer and shared is not None and shared.covered_tokens > prefix:
        moved = cost.transfer_s(shared.covered_tokens - prefix)
        options.append(option(Choice.TRANSFER, shared.covered_tokens, shared.donor_key, moved))
    return options
