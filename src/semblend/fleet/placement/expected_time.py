"""Expected time to the first token: queue, then prefill of what is missing, then transfer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from semblend.core.errors import SettingsError
from semblend.core.flags import Flag
from semblend.planning.cost import CostModel


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetCost:
    """The cost model. The defaults suit a 7B model on one GPU."""

    compute: CostModel = field(default_factory=CostModel)
    seconds_per_token: Annotated[
        float,
        Flag(
            help="Prefill time per token of a worker, in microseconds.",
            name="prefill_us_per_token",
            unit=1e-6,
        ),
    ] = 28e-6
    """Time of one token's matrix products."""
    kv_bytes_per_token: Annotated[int, Flag(help="Bytes of K/V per token, all layers.")] = 57_344
    transfer_bytes_per_s: float = 2e9
    transfer_fixed_s: float = 2e-3
    reuse_share: float = 0.85
    """Share of covered tokens really reused: policies recompute some, sketches err."""
    min_gain_s: float = 2e-3
    min_gain_share: float = 0.05
    """Minimum gain over the engine's router; below it the router decides."""

    def __post_init__(self) -> None:
        for name in ("seconds_per_token", "transfer_bytes_per_s"):
            if getattr(self, name) <= 0:
                raise SettingsError(f"fleet cost: {name} must be positive")
        if not 0.0 <= self.reuse_share <= 1.0:
            raise SettingsError(f"fleet cost: reuse_share: expected 0 to 1, got {self.reuse_share}")

    def prefill_s(self, prompt_tokens: int, prefix_tokens: int, covered_tokens: int) -> float:
        """Time to compute a prompt with a cached prefix and some reusable tokens."""
        cold = self.compute.compute(prefix_tokens, prompt_tokens)
        rest = prompt_tokens - prefix_tokens
        reused = self.reuse_share * max(0, min(covered_tokens, prompt_tokens - 1) - prefix_tokens)
        share = reused / rest if rest else 0.0
        # The positions of the covered tokens are unknown, so assume they are spread evenly.
        saved = cold * share - self.compute.load * reused
        return max(0.0, cold - max(0.0, saved)) * self.seconds_per_token

    def queue_s(self, queued_tokens: int) -> float:
        """Time to compute the prompts ahead of this one."""
        return queued_tokens * self.seconds_per_token

    def transfer_s(self, tokens: int) -> float:
        """Time to fetch the K/V of that many tokens from a shared store."""
        return self.transfer_fixed_s + tokens * self.kv_bytes_per_token / self.transfer_bytes_per_s
