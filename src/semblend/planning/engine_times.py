"""Coefficients of the cost model, from times measured on the engine that runs.

A pass over n tokens takes a + b n, and c more for every token before each of them. On an
accelerator a small pass reads the same weights as a large one, so its fixed part is larger:
b comes from two large passes and `a` from a small one. A cold prefill is one large pass. A plan is
a pass over holes, one more over the rest of the prompt, and copies. Its fixed part is taken from
the small pass, that of the cold prefill from the large ones, so that a wrong estimate declines.
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass, fields, replace

from semblend.planning.cost import CostModel

ROUND_TRIP_S = 0.003
"""A plan takes one more step of the engine than a cold prompt, and has to be made. The workers
cannot measure that; with vLLM's scheduler on a CPU it is about 2 ms."""
PERFECT_HIT = 8192
"""Tokens of the prompt by which an engine is judged as a whole."""
_LEAST_SHARE = 0.001
"""Of a pass's time that its tokens take at least. Where less is seen, passes take what they take
whatever they compute, and hardly anything pays."""
_TICK_S = 1e-7
"""Nothing that was measured takes less."""
_LEAST_COPY_SHARE = 0.75
"""Of a long copy's time that its tokens take at least, however long a short one took."""
_MOST_STEEPER = 8.0
"""How much longer a token of a large pass may take than one of a smaller pass: the smaller may be
over before all weights are read, but where nothing at all is seen of its tokens, what the larger
one shows may be noise."""
_LEAST_LOAD = 0.001
_LEAST_SPAN = 1.0
_LEAST_FIXED = 4.0
_ATTENTION_RANGE = (1 / 8, 8.0)
"""How far the measured attention term may be from what the model's shape says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTimes:
    """Seconds that one engine took, each the least of several runs: others only add to it."""

    small_tokens: int
    small_s: float
    """A pass over the first few tokens of a prompt."""
    half_tokens: int
    half_s: float
    full_tokens: int
    full_s: float
    """Two larger passes over the first tokens of a prompt."""
    deep_before: int
    deep_s: float
    """The pass over `half_tokens`, after this many."""
    holes: int
    holes_s: float
    """The same tokens in this many holes that end where that pass does, with gaps no longer than
    they are."""
    few_tokens: int
    few_s: float
    """Copying a short span."""
    copy_tokens: int
    copy_s: float
    """Copying a long one."""
    spans: int
    spans_s: float
    """Copying as many tokens in this many spans."""

    @property
    def is_sound(self) -> bool:
        """Whether the times make sense: otherwise none of them is used."""
        values = astuple(self)
        if not all(math.isfinite(value) and value >= 0 for value in values):
            return False
        return (
            0 < self.small_tokens < self.half_tokens < self.full_tokens
            and min(self.small_s, self.half_s, self.full_s, self.deep_s, self.holes_s) >= _TICK_S
            and min(self.copy_s, self.spans_s) >= _TICK_S
            and min(self.holes, self.spans) > 1
            and 0 < self.few_tokens < self.copy_tokens
            and self.deep_before >= self.half_tokens
        )

    @property
    def sizes(self) -> tuple[int, ...]:
        """How much was measured. Ranks that share a model measure the same."""
        return (
            self.small_tokens,
            self.half_tokens,
            self.full_tokens,
            self.deep_before,
            self.holes,
            self.few_tokens,
            self.copy_tokens,
            self.spans,
        )

    def consistent(self) -> EngineTimes:
        """The times, with none that is longer than others say it can be.

        Fewer tokens take no longer, nor does the same at less depth or in one piece; and a pass
        takes no longer than two that compute its halves. A probe that was disturbed in every run
        would otherwise make passes look slow, and so reuse cheap.
        """
        deep = min(self.deep_s, self.holes_s)
        half = min(self.half_s, self.full_s, deep)
        return replace(
            self,
            half_s=half,
            deep_s=deep,
            full_s=min(self.full_s, half + deep),
            few_s=min(self.few_s, self.copy_s),
        )

    def __add__(self, other: EngineTimes) -> EngineTimes:
        """The slower of two ranks; a step waits for both. Unsound if one is, or if they differ
        in what they measured.
        """
        if not self.is_sound:
            return self
        if not other.is_sound or self.sizes != other.sizes:
            return replace(other, full_tokens=0)
        return EngineTimes(
            **{
                field.name: max(getattr(self, field.name), getattr(other, field.name))
                for field in fields(self)
            }
        )


def fitted_to(cost: CostModel, measured: EngineTimes) -> CostModel:
    """The model with the coefficients of the engine; the model as it is if the times do not fit."""
    if not measured.is_sound:
        return cost
    measured = measured.consistent()
    fitted = _Fit.of(measured)
    token = fitted.token_s
    least, most = (bound * cost.attention_tokens for bound in _ATTENTION_RANGE)
    attention = max(least, token / max(fitted.depth_s, token / most))
    longer = measured.copy_tokens - measured.few_tokens
    copy_token = max(
        (measured.copy_s - measured.few_s) / longer,
        _LEAST_COPY_SHARE * measured.copy_s / measured.copy_tokens,
    )
    span = max(0.0, measured.spans_s - measured.copy_s) / (measured.spans - 1)
    # Holes lie apart and end where the deep pass does, so that they are this much less deep.
    shallower = fitted.depth_s * measured.half_tokens**2 / 2
    hole = max(0.0, measured.holes_s + shallower - measured.deep_s) / (measured.holes - 1)
    # The step that computes the rest of the prompt is small; the cold one may be large.
    rest = fitted.small_s - fitted.large_s
    return replace(
        cost,
        attention_tokens=attention,
        load=max(_LEAST_LOAD, copy_token / token),
        span_fixed=max(_LEAST_SPAN, (span + hole) / token),
        load_fixed=max(_LEAST_FIXED, (ROUND_TRIP_S + measured.few_s + rest) / token),
        pass_fixed=max(_LEAST_FIXED, fitted.small_s / token),
        measured=True,
    )


def ever_pays(cost: CostModel) -> bool:
    """Whether copying all of a long prompt in one span is faster than computing it.

    Where even that is slower, a tiny model runs on a fast device. Nobody gains by any decision
    there, and an operator who tries reuse out would never see it.
    """
    hit = cost.load * PERFECT_HIT + cost.span_fixed + cost.load_fixed
    return hit < (1.0 - cost.min_saved_share) * cost.compute(0, PERFECT_HIT)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fit:
    token_s: float
    depth_s: float
    """For a token, per token before it."""
    small_s: float
    """Fixed part of a small pass."""
    large_s: float
    """Fixed part of a large pass, never more than that of a small one."""

    @classmethod
    def of(cls, measured: EngineTimes) -> _Fit:
        """The lines through the passes, within what a pass of several tokens can be."""
        half, full = measured.half_tokens, measured.full_tokens
        depth = max(0.0, measured.deep_s - measured.half_s) / (half * measured.deep_before)
        at_half = measured.half_s - depth * half * half / 2
        at_full = measured.full_s - depth * full * full / 2
        if at_full <= at_half:  # what is seen of depth, or of the tokens, is noise
            depth, at_half, at_full = 0.0, measured.half_s, measured.full_s
        share = at_full / full
        first = max(0.0, at_half - measured.small_s) / (half - measured.small_tokens)
        seen = min((at_full - at_half) / (full - half), _MOST_STEEPER * first)
        token = min(share, max(_LEAST_SHARE * share, seen))
        large = max(0.0, at_full - token * full)
        small = max(large, measured.small_s - token * measured.small_tokens)
        return cls(token_s=token, depth_s=depth, small_s=small, large_s=large)
