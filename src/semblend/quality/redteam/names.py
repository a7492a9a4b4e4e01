"""Subjects of records, chosen so that tokenizers split them in different ways."""

from __future__ import annotations

import random

from semblend.quality.texts import prose

FIRST = ("Carlos", "John", "Maria", "Peter", "Anna", "David", "Laura", "Thomas", "Helen", "Mark")
LAST = ("Rossi", "Richardson", "Brown", "Garcia", "Miller", "Novak", "Jensen", "Baker", "Dubois")
ACCENTED = ("Müller", "Åkesson", "Çelik", "Núñez", "Łukasz", "Žižek", "Élodie", "Brontë", "Søren")


def subjects(kind: str, count: int, rng: random.Random) -> list[str]:
    """Draw distinct names of a kind."""
    if kind == "people":
        firsts, lasts = rng.sample(FIRST, count), rng.sample(LAST, count)
        return [f"{first} {last}" for first, last in zip(firsts, lasts, strict=True)]
    if kind == "accents":
        return rng.sample(ACCENTED, count)
    found = prose.names(rng, 2 * count)
    if kind == "capitals":
        return [name.upper() for name in found[:count]]
    if kind == "hyphens":
        return [f"{a}-{b}" for a, b in zip(found[:count], found[count:], strict=True)]
    return found[:count]
