"""Subjects of records, chosen so that tokenizers split them in different ways."""

from __future__ import annotations

import random

from semblend.quality.texts import prose

FIRST = ("Carlos", "John", "Maria", "Peter", "Anna", "David", "Laura", "Thomas", "Helen", "Mark")
LAST = ("Rossi", "Richardson", "Brown", "Garcia", "Miller", "Novak", "Jensen", "Baker", "Dubois")
ACCENTED = ("Müller", "Åkesson", "Çelik", "Núñez", "Łukasz", "Žižek", "Élodie", "Brontë", "Søren")

SCRIPTS = ("山田", "鈴木", "Иван", "Ольга", "Γιώργος", "Ελένη", "علي", "राम", "민준")
STARTS = ("Carl", "Rich", "Wil", "Hart", "Gold")
ENDS = ("son", "ton", "ley", "ford", "man", "wood", "berg", "stein", "well")
UNITS = ("miles", "metres", "feet", "yards", "leagues", "inches")


def subjects(kind: str, count: int, rng: random.Random) -> list[str]:
    """Draw distinct names of a kind."""
    if kind == "people":
        firsts, lasts = rng.sample(FIRST, count), rng.sample(LAST, count)
        return [f"{first} {last}" for first, last in zip(firsts, lasts, strict=True)]
    if kind == "same_first":
        first = rng.choice(FIRST)
        return [f"{first} {last}" for last in rng.sample(LAST, count)]
    if kind == "same_last":
        last = rng.choice(LAST)
        return [f"{first} {last}" for first in rng.sample(FIRST, count)]
    if kind == "same_start":
        start = rng.choice(STARTS)
        return [start + end for end in rng.sample(ENDS, count)]
    if kind == "digits":
        return [f"house {number}b" for number in rng.sample(range(10, 1000), count)]
    lists = {"accents": ACCENTED, "scripts": SCRIPTS, "units": UNITS}
    if kind in lists:
        return rng.sample(lists[kind], count)
    found = prose.names(rng, 2 * count)
    if kind == "capitals":
        return [name.upper() for name in found[:count]]
    if kind == "hyphens":
        return [f"{a}-{b}" for a, b in zip(found[:count], found[count:], strict=True)]
    return found[:count]
