"""One live request: what it is, and how far its reuse has come.

    SEEN → CLAIMED → LOADING → LOADED → ENDED
             ↓          ↓
           (back)     FAILED → ENDED

A claim that the engine does not take is withdrawn. A request that was loaded and loses its
slots either claims again (its K/V is private and stays so) or is released (it starts over).
Every transition is a method; an invalid one raises, and the adapter computes cold.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Generic, TypeVar

from semblend.core.account import Account, Reuse
from semblend.core.errors import SemBlendError
from semblend.core.namespace import Namespace
from semblend.core.outcomes import DeclineReason
from semblend.core.plan import Plan
from semblend.core.tokens import TokenArray
from semblend.integration.lora_adapter import LoraAdapter
from semblend.integration.probing import probes, tokens_to_compute

Handle = TypeVar("Handle", covariant=True)
"""The engine's own object for a request, and the handle that operates on it."""


class IllegalStepError(SemBlendError):
    """An invalid transition of a request."""


class Stage(StrEnum):
    """How far a request's reuse has come."""

    SEEN = "seen"
    """It is known; nothing has been claimed."""
    CLAIMED = "claimed"
    """The engine was told which tokens it need not compute; it may accept or not."""
    LOADING = "loading"
    """Slots are allocated and being filled; nothing may rely on them yet."""
    LOADED = "loaded"
    """Every rank put the K/V in place. Only this is reuse."""
    FAILED = "failed"
    """The load did not happen: the engine computes these tokens exactly."""
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Arrival(Generic[Handle]):
    """What a request is when it arrives."""

    request_id: str
    handle: Handle
    tokens: TokenArray
    namespace: Namespace
    ladder_id: str | None = None
    refusal: str | None = None
    """Why it may neither reuse nor donate, if it may not (multimodal, …)."""
    may_reuse: bool = True
    wants_capture: bool | None = None
    """What the request itself says; None leaves it to the policy."""
    policy: str | None = None
    adapter: LoraAdapter | None = None
    """What it runs with, if not the base model; a part of its namespace too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What the engine was told can be supplied."""

    plan: Plan
    """The request's plan, or what is left of it after a preemption."""
    end: int
    """First position after the claim."""
    pass_tokens: int
    """Tokens computed in our own passes: holes, recompute runs, what a policy probes."""
    reuse: Reuse
    """What it supplies, if the plan is carried out as it stands."""

    @classmethod
    def of(cls, plan: Plan, prompt_tokens: int) -> Claim:
        """The claim that carries out a plan.

        A policy that looks at the prompt's tail needs the tail's slots, and an engine allocates
        no more than is claimed: then the whole prompt is. The engine computes the last token
        of a prompt itself whatever is claimed.
        """
        end = prompt_tokens if probes(plan) else plan.end
        return cls(plan=plan, end=end, pass_tokens=tokens_to_compute(plan), reuse=Reuse.of(plan))


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """What a request takes over from the chain it continues (`core/chain.py`)."""

    exact_tokens: int
    """Leading tokens whose K/V is exact; the chain's is approximate from there on."""
    turns: int
    """Requests in that chain so far."""


class Request(Generic[Handle]):
    """One request, from its arrival until it ends. One thread calls it."""

    __slots__ = (
        "_before_claim",
        "_capture_decided",
        "_cut",
        "_made_for",
        "_offer",
        "account",
        "arrival",
        "asked_elsewhere",
        "chains_seen",
        "claim",
        "continuation",
        "generation",
        "losses",
        "notes",
        "plan",
        "reuse",
        "share_key",
        "stage",
        "started",
        "tainted",
        "was_loaded",
    )

    def __init__(self, arrival: Arrival[Handle], account: Account) -> None:
        self.arrival = arrival
        self.account = account
        self.stage = Stage.SEEN
        self.plan: Plan | None = None
        self.claim: Claim | None = None
        self.generation = 0
        """The set of donors that the plan was made for, where an adapter counts them."""
        self.losses = 0
        """Donors lost by the time all of the plan's were seen to be there."""
        self.share_key: bytes | None = None
        """The key of its namespace, once somebody asked for it."""
        self.reuse: Reuse | None = None
        """What the claim supplies, corrected by the workers' report."""
        self.tainted = False
        """Whether any of its K/V is approximate: only its exact part is captured."""
        self.continuation: Continuation | None = None
        """What it takes over from the chain it continues."""
        self.chains_seen: int | None = None
        """How many chains had been kept when none of them began as it does; else None."""
        self.started = False
        """Whether the engine has admitted it: later calls mean a preempted request."""
        self.was_loaded = False
        """Whether one of its loads was ever confirmed, whatever happened since."""
        self.asked_elsewhere = False
        """Whether donors on other machines were looked up."""
        self.notes: dict[str, Any] = {}
        """What else the response should say (a ladder's rungs)."""
        self._before_claim = Stage.SEEN
        self._made_for: object = None
        self._offer: Claim | None = None
        self._cut: tuple[Plan, Plan | None] | None = None
        self._capture_decided = False

    # -- what it is --------------------------------------------------------------------

    @property
    def request_id(self) -> str:
        """The engine's id."""
        return self.arrival.request_id

    @property
    def handle(self) -> Handle:
        """The engine's own."""
        return self.arrival.handle

    @property
    def tokens(self) -> TokenArray:
        """The whole prompt, int32."""
        return self.arrival.tokens

    @property
    def namespace(self) -> Namespace:
        """The namespace it takes donors from and donates to."""
        return self.arrival.namespace

    @property
    def ladder_id(self) -> str | None:
        """The ladder it is a rung of."""
        return self.arrival.ladder_id

    @property
    def exact_tokens(self) -> int:
        """Tokens of the engine's own prefix hit."""
        return self.account.exact_tokens

    # -- its chain ---------------------------------------------------------------------

    def follow(self, continuation: Continuation | None) -> None:
        """It continues a chain, or does not after all; nothing is allocated to it yet."""
        self.continuation = continuation
        self.tainted = continuation is not None or self.ladder_id is not None

    def found_cached(self, computed_tokens: int) -> None:
        """The engine's cache holds this many of its tokens, the chain's included."""
        exact = computed_tokens
        if self.continuation is not None:
            exact = min(computed_tokens, self.continuation.exact_tokens)
        self.account.exact_tokens = exact
        self.account.continued_tokens = computed_tokens - exact

    @property
    def placed_tokens(self) -> int:
        """Tokens that the engine's cache holds: exact ones, then the chain's."""
        return self.account.exact_tokens + self.account.continued_tokens

    @property
    def is_approximate(self) -> bool:
        """Whether some of its K/V is: it was loaded, or its chain's."""
        return self.tainted and (self.was_loaded or self.continuation is not None)

    @property
    def exact_until(self) -> int:
        """Leading tokens of the prompt whose K/V is exact, whatever the rest is."""
        if self.ladder_id is not None:
            return 0
        if not self.tainted:
            return len(self.tokens)
        if self.continuation is not None:
            return self.continuation.exact_tokens
        first = None if self.plan is None else self.plan.first_approximate_token
        return 0 if first is None else first

    # -- planning ----------------------------------------------------------------------

    def plan_for(self, made_for: object) -> Plan | None:
        """The plan that was made for this exact prefix, if there is one."""
        return self.plan if self.plan is not None and self._made_for == made_for else None

    def planned(
        self, plan: Plan, made_for: object, *, generation: int = 0, losses: int = 0
    ) -> None:
        """A plan was made for an exact prefix and a set of donors."""
        self.plan, self._made_for = plan, made_for
        self.generation, self.losses = generation, losses

    def offer(self, plan: Plan) -> Claim:
        """The claim that carries `plan` out; a request that waits is asked for it every step."""
        if self._offer is None or self._offer.plan is not plan:
            self._offer = Claim.of(plan, len(self.tokens))
        return self._offer

    def cut(self, plan: Plan, cut: Callable[[Claim], Plan | None]) -> Plan | None:
        """The part of `plan` that a step can carry out: `cut` of its claim, made once."""
        if self._cut is None or self._cut[0] is not plan:
            self._cut = plan, cut(self.offer(plan))
        return self._cut[1]

    def decline(self, reason: DeclineReason, detail: str = "") -> None:
        """Remember why this request is computed."""
        self.account.decline(reason, detail)

    # -- steps -------------------------------------------------------------------------

    def make_claim(self, plan: Plan) -> Claim:
        """Tell the engine that `plan` can be carried out; the first time it is the whole plan."""
        self._expect(Stage.SEEN, Stage.LOADED, doing="claim")
        claim = self.claim = self.offer(plan)
        if not self.was_loaded:
            self.plan, self.reuse = plan, claim.reuse
        self._before_claim, self.stage = self.stage, Stage.CLAIMED
        return claim

    def withdraw(self) -> None:
        """Undo a claim that was not taken, without a trace."""
        if self.stage is Stage.CLAIMED:
            self.stage, self.claim = self._before_claim, None

    def admitted(self) -> None:
        """The engine allocated slots for the claim, and they are being filled."""
        self._expect(Stage.CLAIMED, doing="load")
        self.taint()
        self.stage = Stage.LOADING

    def taint(self) -> None:
        """From here on its slots may hold approximate K/V, if the claim has any."""
        approximate = self.claim is not None and self.claim.plan.first_approximate_token is not None
        self.tainted = self.tainted or approximate or self.ladder_id is not None

    def loaded(self, reused_tokens: int | None = None) -> None:
        """Every rank put the K/V in place; `reused_tokens` of it where a policy took part."""
        self._expect(Stage.LOADING, doing="confirm")
        if reused_tokens is not None and self.reuse is not None and not self.was_loaded:
            more = self.reuse.reused_tokens - reused_tokens
            self.reuse = replace(
                self.reuse,
                reused_tokens=reused_tokens,
                recomputed_tokens=self.reuse.recomputed_tokens + more,
            )
        self.stage, self.was_loaded = Stage.LOADED, True

    def failed(self) -> None:
        """Claimed tokens are computed: exact, unless an earlier load left traces."""
        if self.stage is Stage.ENDED:
            raise IllegalStepError(f"request {self.request_id} cannot fail: it has ended")
        if not self.was_loaded:
            self.tainted = self.ladder_id is not None or self.continuation is not None
        self.stage = Stage.FAILED

    def released(self) -> None:
        """Its slots and their contents are gone: it starts over if it comes back."""
        self._expect(*(stage for stage in Stage if stage is not Stage.ENDED), doing="start anew")
        self.stage, self.claim, self.reuse = Stage.SEEN, None, None
        self.plan, self._made_for, self._offer, self._cut = None, None, None, None
        self.was_loaded = False

    def ended(self) -> None:
        """It is gone."""
        self.stage = Stage.ENDED

    @property
    def is_capture_decided(self) -> bool:
        """Whether it is known if its prompt is kept."""
        return self._capture_decided

    def decide_capture(self) -> bool:
        """Whether keeping its prompt is still undecided; decided after this call."""
        first, self._capture_decided = not self._capture_decided, True
        return first

    def report(self, *, certified: bool) -> dict[str, Any]:
        """What the response says was reused: engine-confirmed tokens, nothing else."""
        return self.account.report(
            self.reuse if self.was_loaded else None,
            approximate=self.tainted,
            certified=certified,
            **self.notes,
        )

    def _expect(self, *stages: Stage, doing: str) -> None:
        if self.stage not in stages:
            raise IllegalStepError(
                f"request {self.request_id} cannot {doing}: it is {self.stage.value}"
            )
