"""What reuse saves and costs, in units of one token's linear compute.

Computing the token at position p costs 1 + p / attention_tokens: its matrix products, and attention
over everything before it. A reused token costs its load, every span its bookkeeping, every plan
one extra step of the engine and, where it has holes, one extra pass.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from semblend.core.errors import SettingsError
from semblend.core.plan import CostEstimate, Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """Coefficients of the estimate. The defaults suit a 7B model on one GPU.

    :meth:`for_model` derives the attention term from the model's shape. An engine that was
    measured at start has its own coefficients (`engine_times`).
    """

    attention_tokens: float = 32_768.0
    """Position at which a token's attention costs as much as its matrix products."""
    load: float = 0.01
    """Cost of moving one token's K/V, relative to computing it."""
    span_fixed: float = 4.0
    """Index arithmetic and launches per span."""
    load_fixed: float = 8.0
    """One more step of the engine, and the start of the copies."""
    pass_fixed: float = 8.0
    """A pass over holes, besides its tokens."""
    min_saved_share: float = 0.03
    """A plan that saves a smaller share of the cold prefill is not worth its risk."""
    donor_value: float = 0.25
    """What a token new to the donors is expected to save others later, relative to computing it. If
    computed after reused K/V, it cannot be a donor and saves nothing.
    """
    measured: bool = False
    """Whether the coefficients were measured on the engine that they are about."""

    def __post_init__(self) -> None:
        if self.attention_tokens <= 0:
            raise SettingsError(
                f"cost model: attention_tokens must be positive, got {self.attention_tokens}"
            )
        for name in (
            "load",
            "span_fixed",
            "load_fixed",
            "pass_fixed",
            "min_saved_share",
            "donor_value",
        ):
            if getattr(self, name) < 0:
                raise SettingsError(f"cost model: {name} must not be negative")

    @classmethod
    def for_model(
        cls, *, parameters: int, layers: int, query_heads: int, head_dim: int
    ) -> CostModel:
        """Cost model of a dense decoder: 2 FLOPs per parameter, 4 per head dimension and key."""
        return cls(attention_tokens=2.0 * parameters / (4.0 * layers * query_heads * head_dim))

    def compute(self, start: int, end: int) -> float:
        """Cost of computing tokens [start, end)."""
        return (end - start) + (end * end - start * start) / (2.0 * self.attention_tokens)

    def gain(self, start: int, end: int) -> float:
        """What reusing [start, end) saves before fixed costs."""
        return self.compute(start, end) - self.load * (end - start)

    def estimate(self, plan: Plan) -> CostEstimate:
        """Cold and planned cost of a plan's prompt. What is already in place is free in both."""
        cold = self.compute(plan.placed_tokens, plan.prompt_tokens)
        if not plan.spans:
            return CostEstimate(cold=cold, planned=cold)
        computed: Iterable[tuple[int, int]] = (
            *((hole.start, hole.end) for hole in plan.holes),
            (plan.end, plan.prompt_tokens),
        )
        planned = (
            sum(self.compute(start, end) for start, end in computed)
            + self.load * plan.reused_tokens
            + self.span_fixed * len(plan.copies)
            + self.load_fixed
            + self.pass_fixed * bool(plan.holes)
        )
        return CostEstimate(cold=cold, planned=planned)

    def computed_after(self, plan: Plan, first: int) -> float:
        """Cost of what a plan leaves to compute from position `first` on."""
        left = (*((hole.start, hole.end) for hole in plan.holes), (plan.end, plan.prompt_tokens))
        return sum(self.compute(max(start, first), end) for start, end in left if end > first)

    def donors_lost(self, plan: Plan) -> float:
        """What others will not save later because this plan makes new tokens approximate.

        New tokens are those no span covers; donors already hold the copied ones. A request that
        continues an approximate chain has no donors to lose.
        """
        first = plan.first_approximate_token
        if first is None or plan.continued_tokens:
            return 0.0
        new = (*((gap.start, gap.end) for gap in plan.gaps), (plan.end, plan.prompt_tokens))
        return self.donor_value * sum(
            self.compute(max(start, first), end) for start, end in new if end > first
        )
