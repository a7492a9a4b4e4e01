"""Dynamic recompute policies inside a third-party engine: what they may ask.

A dynamic policy looks at what the model does with the borrowed K/V before it chooses.
Once the spans are in place, an adapter runs the tail over them in a nested pass and reads
the attention of its last queries off; the chosen blocks become holes of the pass that
follows. What needs cold K/V of every token (deviation, attention to edits) has no place
to be computed there, and policies that ask for it are declined when planning.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from semblend.core.errors import SemBlendError
from semblend.core.outcomes import DeclineReason
from semblend.core.plan import Plan
from semblend.planning.depth import shifts_depth
from semblend.planning.policies.base import ProbeKind, Scores, policy_from_spec

if TYPE_CHECKING:
    import torch


TAIL_PROBES = frozenset({ProbeKind.TAIL_ATTENTION})
UNPROBED = "needs a probe that is not made here"


class ProbeUnavailableError(SemBlendError):
    """A policy asks for something that cannot be computed in this engine."""


class TailProbe:
    """A probe that can tell the tail's attention and refuses everything else."""

    def __init__(self, attention: Callable[[], Scores]) -> None:
        """`attention` runs the tail, when and if a policy asks."""
        self._attention = attention

    def tail_attention(self) -> Scores:
        """Attention mass of the last queries on each token of the prompt."""
        return self._attention()

    def deviation(self, layers: int) -> Scores:
        """Not here."""
        raise ProbeUnavailableError("deviation from cold needs every token computed cold")

    def edit_attention(self, layers: int) -> Scores:
        """Not here."""
        raise ProbeUnavailableError("attention to edits needs every token computed cold")


def is_dynamic(spec: str) -> bool:
    """Whether a policy wants a probe."""
    return policy_from_spec(spec).dynamic


def needs_no_probe(spec: str) -> bool:
    """Whether a policy chooses before anything is loaded."""
    return not is_dynamic(spec)


def is_static(spec: str) -> bool:
    """Whether a policy runs where spans are copied, and nothing but that is done."""
    return not is_dynamic(spec) and not shifts_depth(spec)


def can_probe(spec: str) -> bool:
    """Whether all a policy asks of a probe is what a :class:`TailProbe` can tell."""
    return policy_from_spec(spec).probes <= TAIL_PROBES


def declined_unprobed(plan: Plan) -> Plan:
    """A plan whose policy asks for more than this engine can answer: never run without it."""
    return plan.declined(DeclineReason.UNSUPPORTED, f"{plan.policy} {UNPROBED}")


def pass_tokens(plan: Plan) -> int:
    """Tokens a plan computes in nested passes, the tail of a dynamic policy's probe included.

    What such a policy then adds is bounded where it is added.
    """
    holes = sum(map(len, plan.holes))
    return holes + plan.tail_tokens if is_dynamic(plan.policy) else holes


def probes(plan: Plan) -> bool:
    """Whether a plan's policy looks at the tail before it chooses; exact copies need no look."""
    return is_dynamic(plan.policy) and plan.first_approximate_token is not None


def tokens_to_compute(plan: Plan) -> int:
    """Tokens a plan computes in one nested pass; the tail among them where a policy looks."""
    return pass_tokens(plan) if probes(plan) else sum(map(len, plan.holes))


def first_added(before: Plan, after: Plan) -> int:
    """The first token that is computed in one plan and copied in the other; the end if none is."""
    added = np.zeros(before.end, dtype=bool)
    for hole in after.holes:
        added[hole.start : hole.end] = True
    for hole in before.holes:
        added[hole.start : hole.end] = False
    return int(added.argmax()) if added.any() else before.prompt_tokens


def watch_queries(module: Any, watch: Callable[[torch.Tensor], None], *, named: str) -> Any:
    """Have `watch` called with an attention module's queries once it has written its K/V.

    They are its first argument, or the one called `named`. Returns the hook's handle.
    """

    def after(_: Any, arguments: Sequence[Any], by_name: dict[str, Any], __: Any) -> None:
        watch(arguments[0] if arguments else by_name[named])

    return module.register_forward_hook(after, with_kwargs=True)
