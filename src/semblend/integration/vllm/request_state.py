"""What the scheduler side remembers about one live request."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from semblend.core.account import Account, Reuse
from semblend.core.namespace import Namespace
from semblend.core.outcomes import DeclineReason
from semblend.core.plan import Plan
from semblend.core.tokens import TokenArray
from semblend.integration.probing import is_dynamic, pass_tokens
from semblend.integration.vllm.block_hashes import PrivateChain


class Progress(StrEnum):
    """How far a claim has come."""

    NONE = "none"
    CLAIMED = "claimed"
    """Told to the engine; it may or may not allocate."""
    ADMITTED = "admitted"
    """Blocks are allocated and the workers load into them; no step counts on them yet."""
    CONFIRMED = "confirmed"
    """Every rank put the K/V in place."""
    FAILED = "failed"
    """Reported as failed; the engine computes these tokens exactly."""


@dataclass(slots=True)
class RequestState:
    """One request, from its arrival until it is freed."""

    request: Any
    tokens: TokenArray
    namespace: Namespace
    account: Account
    ladder_id: str | None = None
    refusal: str | None = None
    """Why it may neither reuse nor donate, if so (LoRA, multimodal, …)."""
    may_reuse: bool = True
    wants_capture: bool | None = None
    """What the request itself says; None leaves it to the policy."""
    policy: str | None = None
    plan: Plan | None = None
    planned_at: tuple[int, int] | None = None
    """Exact tokens and donor generation the plan was made for."""
    claim: Plan | None = None
    """What is being claimed: the plan, or what is left of it after a preemption."""
    progress: Progress = Progress.NONE
    before_claim: Progress = Progress.NONE
    started: bool = False
    """Whether the engine has admitted it: later calls are about a preempted request."""
    chain: PrivateChain | None = None
    claimed_blocks: int = 0
    tainted: bool = False
    """Whether any of its K/V is approximate: then it is never captured."""
    advertised: bool = False
    capture_issued: bool = False
    supplied_tokens: int = 0
    recomputed_tokens: int = 0
    hole_tokens: int = 0
    """Tokens between spans, computed in the nested pass."""
    pass_tokens: int = 0
    """All tokens of the nested pass: holes and recompute runs."""
    resumes: bool = False
    """Whether it was preempted and loads for the second time."""
    asked_elsewhere: bool = False
    """Whether donors of other machines were looked for."""
    notes: dict[str, Any] = field(default_factory=dict)
    """What else the response should say (a ladder's rungs)."""

    @property
    def request_id(self) -> str:
        """The engine's id."""
        return str(self.request.request_id)

    @property
    def claim_end(self) -> int:
        """First position behind the claim.

        A policy that looks at the prompt's tail needs the tail's blocks, and the engine
        allocates no more than is claimed: then the whole prompt is. The engine computes the
        last token of a prompt itself whatever is claimed.
        """
        if self.claim is None:
            return self.exact_tokens
        return len(self.tokens) if probes(self.claim) else self.claim.end

    @property
    def exact_tokens(self) -> int:
        """Tokens of the engine's own prefix hit."""
        return self.account.exact_tokens

    @exact_tokens.setter
    def exact_tokens(self, tokens: int) -> None:
        self.account.exact_tokens = tokens

    @property
    def reuse(self) -> Reuse | None:
        """What was claimed, as far as the workers have not corrected it."""
        plan = self.plan
        if plan is None:
            return None
        return Reuse(
            reused_tokens=self.supplied_tokens,
            recomputed_tokens=self.recomputed_tokens,
            hole_tokens=self.hole_tokens,
            donor_ids=plan.donor_ids,
            policy=plan.policy,
        )

    def undo_claim(self) -> None:
        """A claim that was not admitted leaves no trace."""
        if self.progress is Progress.CLAIMED:
            self.progress, self.claim = self.before_claim, None

    def make_claim(self, plan: Plan) -> None:
        """Tell the engine that `plan` can be carried out; it may allocate or not."""
        self.before_claim, self.progress = self.progress, Progress.CLAIMED
        self.claim = plan
        self.pass_tokens = tokens_to_compute(plan)

    def load_ended_well(self, reused_tokens: int | None) -> None:
        """Every rank loaded; a dynamic policy left `reused_tokens`, None where none had a say."""
        if self.chain is not None:
            self.chain.keep()
        if self.resumes:
            return
        if reused_tokens is not None:
            self.recomputed_tokens += self.supplied_tokens - reused_tokens
            self.supplied_tokens = reused_tokens
        self._tell_cached(self.supplied_tokens)

    def load_failed(self) -> None:
        """The engine computes the claimed tokens: exact, unless an earlier load left traces."""
        if self.resumes:
            return
        if self.chain is not None:
            self.chain.undo()
            self.chain = None
        self.tainted = self.ladder_id is not None
        self._tell_cached(0)

    def _tell_cached(self, reused_tokens: int) -> None:
        """Correct what the engine reports as cached: it counts every claimed token."""
        stats = getattr(self.request, "prefill_stats", None)
        if stats is not None:
            stats.set(
                num_prompt_tokens=len(self.tokens),
                num_local_cached_tokens=self.exact_tokens,
                num_external_cached_tokens=reused_tokens,
            )

    def decline(self, reason: DeclineReason, detail: str = "") -> None:
        """Remember why this request is computed."""
        self.account.decline(reason, detail)

    def report(self, *, confirmed: bool, certified: bool) -> dict[str, Any]:
        """What the response says was reused: engine-confirmed tokens, nothing else."""
        return self.account.report(
            self.reuse if confirmed else None,
            approximate=self.tainted,
            certified=certified,
            **self.notes,
        )


def probes(plan: Plan) -> bool:
    """Whether a plan's policy looks at the tail before it chooses; exact copies need no look."""
    return is_dynamic(plan.policy) and plan.first_approximate_token is not None


def tokens_to_compute(plan: Plan) -> int:
    """Tokens a plan computes in one nested pass; the tail among them where a policy looks."""
    return pass_tokens(plan) if probes(plan) else sum(map(len, plan.holes))
