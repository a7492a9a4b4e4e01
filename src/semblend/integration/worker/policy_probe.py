"""Asks a dynamic policy in a worker: the tail runs over the spans in a nested pass.

The pass also computes the holes, so its results stand where the policy adds nothing.
Where it does, everything from the first added token on is computed again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from semblend.core.errors import DonorError
from semblend.core.plan import Hole, Plan
from semblend.integration.probing import TailProbe, first_added
from semblend.integration.scheduler.orders import LoadCommand
from semblend.integration.worker.port import KvLayers, Runs, Watch
from semblend.integration.worker.sequences import sequences_of
from semblend.kv.attention_weights import TAIL_QUERIES, attention_weights
from semblend.planning.policies.base import Scores, policy_from_spec
from semblend.planning.recompute import probed

Reduce = Callable[[torch.Tensor], torch.Tensor]
"""Sums a tensor over the ranks: each has its own heads, and all must choose the same."""


class LoadProbe:
    """One load with a probing policy. Constructing it may fail; then nothing has run."""

    def __init__(self, command: LoadCommand, plan: Plan, access: KvLayers) -> None:
        self._command = command
        self._plan = plan
        self._access = access
        self._ran = False
        size = len(command.tokens)
        self.sequences = sequences_of(command, (*plan.holes, Hole(plan.end, size)))

    def refined(self, nested: Runs, reduce: Reduce) -> LoadCommand:
        """The load with what is still to compute, now that the policy has chosen.

        Raises
        ------
        DonorError
            If nothing is left to reuse.
        """
        plan = self.chosen(nested, reduce)
        if not plan.reused_tokens:
            raise DonorError(f"{plan.policy} recomputes every reusable token")
        holes = self.left_to_compute(plan)
        return replace(self._command, copies=plan.copies, holes=holes, refine=None)

    def chosen(self, nested: Runs, reduce: Reduce) -> Plan:
        """The plan with what the policy chose, which may be every token."""
        probe = TailProbe(lambda: self._tail_attention(nested, reduce))
        policy = policy_from_spec(self._plan.policy)
        return probed(self._plan, self._command.tokens, policy, probe)

    def left_to_compute(self, plan: Plan) -> tuple[Hole, ...]:
        """What is left of a plan that was chosen: holes, and the tail as far as it was claimed.

        From the first token that the policy added; all if no pass has run. The engine computes
        the prompt's last token itself.
        """
        last = min(self._command.end, len(self._command.tokens) - 1)
        tail = (Hole(plan.end, last),) if plan.end < last else ()
        first = first_added(self._plan, plan) if self._ran else 0
        return tuple(hole for hole in (*plan.holes, *tail) if hole.end > first)

    def _tail_attention(self, nested: Runs, reduce: Reduce) -> Scores:
        """Attention mass of the last queries on each token, all heads of the later layers."""
        access, command = self._access, self._command
        size = len(command.tokens)
        asked = min(TAIL_QUERIES, size - self._plan.end)
        mass = torch.zeros(size, dtype=torch.float64, device=access.device)

        def watch(layer: int, query: torch.Tensor) -> None:
            keys = access.read_layer(layer, command.block_ids, 0, size)[0]
            rows = query.view(query.shape[0], -1, access.head_dim)[-asked:]
            weights = attention_weights(rows, keys, first=size - asked)
            mass.add_(weights.sum(dim=(0, 1)))

        later = range(access.layer_count // 2, access.layer_count)
        nested.run(self.sequences, watch=Watch(layers=later, see=watch))
        self._ran = True
        scores: Scores = reduce(mass.cpu()).numpy()
        return scores
