"""Dynamic recompute policies inside a third-party engine: what they may ask for.

A dynamic policy looks at what the model does with the borrowed K/V before it chooses. Once
the spans are in place, an adapter runs the tail over them in a nested pass and reads the
attention of its last queries; the chosen blocks become holes of the next pass. Scores that
need cold K/V of every token (deviation, attention to edits) cannot be computed there, so
plans with policies that ask for them are declined.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from semblend.core.errors import SemBlendError
from semblend.core.outcomes import DeclineReason
from semblend.core.plan import Plan
from semblend.planning.depth import shifts_depth
from semblend.planning.policies.base import ProbeKind, Scores, policy_from_spec

if TYPE_CHECKING:
    import torch


TAIL_PROBES = frozenset({ProbeKind.TAIL_ATTENTION})
UNPROBED = "needs a probe that this engine does not make"


class ProbeUnavailableError(SemBlendError):
    """A policy asks for something that this engine cannot compute."""


class TailProbe:
    """A probe that knows the tail's attention and refuses everything else."""

    def __init__(self, attention: Callable[[], Scores]) -> None:
        """`attention` runs the tail, if and when a policy asks."""
        self._attention = attention

    def tail_attention(self) -> Scores:
        """Attention mass of the last queries on each token of the prompt."""
        return self._attention()

    def deviation(self, layers: int) -> Scores:
        """Not available here."""
        raise ProbeUnavailableError("deviation from cold needs every token computed cold")

    def edit_attention(self, layers: int) -> Scores:
        """Not available here."""
        raise ProbeUnavailableError("attention to edits needs every token computed cold")


def is_dynamic(spec: str) -> bool:
    """Whether a policy needs a probe."""
    return policy_from_spec(spec).dynamic


def needs_no_probe(spec: str) -> bool:
    """Whether a policy chooses before anything is loaded."""
    return not is_dynamic(spec)


def is_static(spec: str) -> bool:
    """Whether a policy needs nothing but copied spans."""
    return not is_dynamic(spec) and not shifts_depth(spec)


def can_probe(spec: str) -> bool:
    """Whether a :class:`TailProbe` answers everything a policy asks for."""
    return policy_from_spec(spec).probes <= TAIL_PROBES


def declined_unprobed(plan: Plan) -> Plan:
    """Decline a plan whose policy needs more than this engine can answer."""
    return plan.declined(DeclineReason.UNSUPPORTED, f"{plan.policy} {UNPROBED}")


def pass_tokens(plan: Plan) -> int:
    """Tokens a plan computes in nested passes, including the tail of a dynamic policy's probe.

    What such a policy adds later is limited where it is added.
    """
    holes = sum(map(len, plan.holes))
    return holes + plan.tail_tokens if is_dynamic(plan.policy) else holes


def probes(plan: Plan) -> bool:
    """Whether a plan's policy looks at the tail before it chooses; exact copies need no probe."""
    return is_dynamic(plan.policy) and plan.first_approximate_token is not None


def tokens_to_compute(plan: Plan) -> int:
    """Tokens a plan computes in one nested pass, including the tail if a policy probes it."""
    return pass_tokens(plan) if probes(plan) else sum(map(len, plan.holes))


def watch_queries(module: Any, watch: Callable[[torch.Tensor], None], *, named: str) -> Any:
    """Call `watch` with an attention module's queries once it has written its K/V.

    The queries are its first argument, or the one called `named`. Returns the hook's handle.
    """

    def after(_: Any, arguments: Sequence[Any], by_name: dict[str, Any], __: Any) -> None:
        watch(arguments[0] if arguments else by_name[named])

    return module.register_forward_hook(after, with_kwargs=True)
