"""Asks a dynamic policy in a worker: the tail runs over the spans in a nested pass.

The pass also computes the holes, so its results stand where the policy adds nothing.
Where it does, everything from the first added token on is computed again. Loads whose tails fit
one forward are asked together: one pass, and one answer to wait for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from semblend.core.errors import SemBlendError
from semblend.core.plan import Hole, Plan
from semblend.integration.probing import TailProbe
from semblend.integration.scheduler.orders import LoadCommand
from semblend.integration.worker.port import KvLayers, Runs, Watch
from semblend.integration.worker.sequences import PassLimits, in_turn, sequences_of
from semblend.kv.attention_weights import TAIL_QUERIES, attention_weights
from semblend.planning.policies.base import Scores, policy_from_spec
from semblend.planning.recompute import left_to_compute, plan_runs, probed

Reduce = Callable[[torch.Tensor], torch.Tensor]
"""Sums a tensor over the ranks: each has its own heads, and all must choose the same."""


class PolicyDeclinedError(SemBlendError):
    """A policy chose every reusable token once it had seen the tail."""

    def __init__(self, plan: Plan, *, computed_until: int) -> None:
        super().__init__(f"{plan.policy} recomputes every reusable token")
        self.computed_until = computed_until
        """Up to here the probe's pass computed what the engine would."""


class LoadProbe:
    """One load with a probing policy. Constructing it may fail; then nothing has run."""

    def __init__(self, command: LoadCommand, plan: Plan, access: KvLayers) -> None:
        self._command = command
        self._plan = plan
        self._access = access
        self._ran = False
        self.size = len(command.tokens)
        *self.holes, self.tail = sequences_of(command, (*plan.holes, Hole(plan.end, self.size)))
        self.asked = min(TAIL_QUERIES, len(self.tail))
        """How many of the tail's last queries are looked at."""

    def refined(self, nested: Runs, reduce: Reduce) -> LoadCommand:
        """The load with what is still to compute, now that the policy has chosen.

        Raises
        ------
        PolicyDeclinedError
            If nothing is left to reuse.
        """
        plan = self.chosen(nested, reduce)
        if not plan.reused_tokens:
            first = self._plan.copies[0].target_start if self._ran else 0
            raise PolicyDeclinedError(plan, computed_until=first)
        holes = self.left_to_compute(plan)
        return replace(self._command, copies=plan.copies, holes=holes, refine=None)

    def chosen(self, nested: Runs, reduce: Reduce) -> Plan:
        """The plan with what the policy chose, which may be every token."""
        return self.chosen_by(lambda: self._tail_attention(nested, reduce))

    def chosen_by(self, attention: Callable[[], Scores]) -> Plan:
        """The same with the tail's attention from elsewhere, if and when the policy asks."""
        policy = policy_from_spec(self._plan.policy)
        return probed(self._plan, self._command.tokens, policy, TailProbe(attention))

    def ran(self) -> None:
        """Holes and tail were computed over the spans."""
        self._ran = True

    def left_to_compute(self, plan: Plan) -> tuple[Hole, ...]:
        """What is left of a plan that was chosen: holes, and the tail as far as it was claimed.

        From the first token that the policy added; all if no pass has run. The engine computes
        the prompt's last token itself.
        """
        last = max(plan.end, min(self._command.end, len(self._command.tokens) - 1))
        runs = left_to_compute(self._plan, plan) if self._ran else plan_runs(plan)
        return tuple(Hole(run.start, min(run.end, last)) for run in runs if run.start < last)

    def mass(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        """Attention mass of the queries asked about on each token, [tokens]; all heads of a layer.

        `queries` are their rows, [asked, heads * head_dim].
        """
        access, command = self._access, self._command
        keys = access.read_layer(layer, command.block_ids, 0, self.size)[0]
        rows = queries.view(self.asked, -1, access.head_dim)
        window = access.window(layer)
        weights = attention_weights(rows, keys, first=self.size - self.asked, window=window)
        return weights.sum(dim=(0, 1))

    def _tail_attention(self, nested: Runs, reduce: Reduce) -> Scores:
        (scores,) = _tails_attention([self], self._access, nested, reduce)
        return scores


def asked_together(probes: Sequence[LoadProbe], limits: PassLimits) -> list[list[LoadProbe]]:
    """The probes in groups whose tails fit one forward; a tail too long for that is alone."""
    groups: list[list[LoadProbe]] = []
    room = 0
    for probe in probes:
        if not groups or len(probe.tail) > room or len(groups[-1]) == limits.sequences:
            groups.append([])
            room = limits.tokens
        groups[-1].append(probe)
        room -= len(probe.tail)
    return groups


def chosen_together(
    probes: Sequence[LoadProbe], access: KvLayers, nested: Runs, reduce: Reduce
) -> list[Plan]:
    """The plans of one group, with what their policies chose after a pass over all of them."""
    scores: list[Scores] = []

    def attention(number: int) -> Scores:
        if not scores:
            scores.extend(_tails_attention(probes, access, nested, reduce))
        return scores[number]

    return [probe.chosen_by(partial(attention, number)) for number, probe in enumerate(probes)]


def _tails_attention(
    probes: Sequence[LoadProbe], access: KvLayers, nested: Runs, reduce: Reduce
) -> list[Scores]:
    """Attention mass of each tail's last queries on its prompt's tokens, in the later layers.

    The tails come last, so that they end the last forward, which is watched.
    """
    ends = np.cumsum([probe.size for probe in probes])
    # Rows behind a tail's in the last forward are those of the tails after it.
    behind = np.cumsum([0, *(len(probe.tail) for probe in reversed(probes))])[-2::-1].tolist()
    masses = torch.zeros(int(ends[-1]), dtype=torch.float64, device=access.device)
    parts = masses.tensor_split(ends[:-1].tolist())

    def see(layer: int, queries: torch.Tensor) -> None:
        for probe, part, after in zip(probes, parts, behind, strict=True):
            end = len(queries) - after
            part.add_(probe.mass(layer, queries[end - probe.asked : end]))

    layers = access.layer_count - access.draft_layers
    watch = Watch(layers=range(layers // 2, layers), see=see, last=behind[0] + probes[0].asked)
    holes = in_turn([probe.holes for probe in probes])
    nested.run([*holes, *(probe.tail for probe in probes)], watch=watch)
    for probe in probes:
        probe.ran()
    return np.split(reduce(masses.cpu()).numpy(), ends[:-1])
