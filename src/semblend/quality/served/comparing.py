"""How far one greedy answer is from another, by the likeliest tokens that an engine names.

Tokens that both distributions name are compared one by one, those that neither names together as
one. Of all distributions that agree with what is named the nearest are taken, so this KL is a
lower bound of the true one. Positions count until the first token that differs: behind it the two
answer different texts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from semblend.quality.scores import Divergence
from semblend.quality.served.asking import TOP, ServedReply

METHOD = (
    "greedy answers up to the first token that differs, of which the n-th counts 1/n; KL from the "
    f"{TOP} likeliest tokens, all others as one: a lower bound"
)
_LEAST = 1e-9
"""A share that rounding may have eaten."""


def least_kl(cold: Mapping[str, float], warm: Mapping[str, float]) -> float:
    """The least KL(cold || warm) in nats that agrees with what both name.

    Tokens that only cold names have in warm no more than the least that warm names, nor more than
    it leaves unnamed. Within that, the likeliest case for the defence is taken.

    >>> least_kl({"a": 0.0}, {"a": 0.0})
    0.0
    """
    both = cold.keys() & warm.keys()
    kl = sum(math.exp(cold[token]) * (cold[token] - warm[token]) for token in both)
    alone = [math.exp(value) for token, value in cold.items() if token not in both]
    rest = max(0.0, 1.0 - sum(map(math.exp, cold.values())))
    left = max(_LEAST, 1.0 - sum(math.exp(warm[token]) for token in both))
    unnamed = max(_LEAST, 1.0 - sum(map(math.exp, warm.values())))
    cap = min(unnamed, min(map(math.exp, warm.values()), default=1.0))
    # Warm's share is dealt out in proportion to cold's; tokens that would get too much are capped.
    free = sorted(alone)
    while free and free[-1] * left > cap * (sum(free) + rest):
        most = free.pop()
        kl += most * math.log(most / cap)
        left = max(_LEAST, left - cap)
    share = sum(free) + rest
    if share > _LEAST:
        kl += share * math.log(share / left)
    return max(0.0, kl)


def compared(cold: ServedReply, warm: ServedReply) -> Divergence:
    """One answer against cold's; one that differs from its n-th token on agrees to 1 - 1/n."""
    together = min(len(cold.top), len(warm.top))
    agreed = 0
    for mine, theirs in zip(cold.tokens, warm.tokens, strict=False):
        if mine != theirs:
            break
        agreed += 1
    places = range(min(together, agreed + 1))
    kl = [least_kl(cold.top[at], warm.top[at]) for at in places]
    return Divergence(
        kl=sum(kl) / len(kl) if kl else 0.0,
        kl_worst=max(kl, default=0.0),
        top1=1.0 if cold.tokens == warm.tokens else 1.0 - 1.0 / (agreed + 1),
        nll=_mean([-_of(warm.top[at], cold.tokens[at]) for at in places]),
        cold_nll=_mean([-_of(cold.top[at], cold.tokens[at]) for at in places]),
    )


def margin(cold: ServedReply) -> float:
    """By how much cold prefers its answer to the next best, where it is least sure, nats."""
    gaps: list[float] = []
    for top in cold.top:
        best = sorted(top.values(), reverse=True)[:2]
        if len(best) == 2:
            gaps.append(best[0] - best[1])
    return min(gaps, default=0.0)


def _of(top: Mapping[str, float], token: str) -> float:
    """A token's log-probability; one that is not named has the least of the named at most."""
    return top.get(token, min(top.values(), default=0.0))


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
