"""Generated prose: sentences that say nothing the questions ask about.

All of it is made from short word lists, so it works offline and has no outside licence.
"""

from __future__ import annotations

import random

PLACES = [
    "river",
    "market",
    "harbour",
    "mill",
    "bridge",
    "orchard",
    "chapel",
    "station",
    "quarry",
    "meadow",
    "library",
    "square",
    "garden",
    "tower",
    "workshop",
    "bakery",
    "school",
    "forest",
    "valley",
    "ferry",
]
PEOPLE = [
    "farmers",
    "sailors",
    "children",
    "travellers",
    "weavers",
    "masons",
    "teachers",
    "merchants",
    "fishermen",
    "carpenters",
    "neighbours",
    "visitors",
    "drivers",
    "clerks",
    "nurses",
    "painters",
]
THINGS = [
    "bread",
    "timber",
    "wool",
    "lamps",
    "baskets",
    "letters",
    "tools",
    "barrels",
    "apples",
    "stones",
    "ropes",
    "books",
    "candles",
    "carpets",
    "horses",
    "wagons",
    "nets",
    "seeds",
]
TIMES = (
    "in autumn",
    "before sunrise",
    "on market days",
    "after the rain",
    "during the long winter",
    "in the evening",
    "every second week",
    "at the end of the month",
    "when the bells ring",
    "on quiet afternoons",
)
QUALITIES = [
    "old",
    "narrow",
    "quiet",
    "crowded",
    "famous",
    "muddy",
    "sunny",
    "distant",
    "wooden",
    "busy",
    "lonely",
    "tidy",
    "broad",
    "steep",
    "cold",
    "modest",
]
VERBS = (
    ("bring", "to"),
    ("carry", "past"),
    ("store", "behind"),
    ("repair", "near"),
    ("sell", "beside"),
    ("count", "at"),
    ("leave", "in front of"),
    ("collect", "from"),
)
NEWS = (
    "nobody remembers who planned it",
    "the work took longer than anyone had hoped",
    "there is little left to see today",
    "the older people still speak of it",
    "it was written down in a small book",
    "no two accounts of it agree",
    "the council has talked of a change",
    "strangers often lose their way there",
)


def sentence(rng: random.Random) -> str:
    """One sentence about nothing in particular."""
    shape = rng.randrange(6)
    place, other = rng.sample(PLACES, 2)
    people, thing = rng.choice(PEOPLE), rng.choice(THINGS)
    quality, time = rng.choice(QUALITIES), rng.choice(TIMES)
    verb, where = rng.choice(VERBS)
    if shape == 0:
        return f"The {people} {verb} {thing} {where} the {quality} {place} {time}."
    if shape == 1:
        return f"{time.capitalize()} the {place} is {quality}, and the {people} stay at home."
    if shape == 2:
        return (
            f"Between the {place} and the {other} lies a {quality} road that {people} use {time}."
        )
    if shape == 3:
        return f"They say of the {quality} {place} that {rng.choice(NEWS)}."
    if shape == 4:
        return (
            f"Once the {people} had {thing} enough for the whole {place}, but {rng.choice(NEWS)}."
        )
    return f"A {quality} wind comes from the {other} {time}, and the {people} {verb} their {thing}."


def paragraph(rng: random.Random, sentences: int) -> list[str]:
    return [sentence(rng) for _ in range(sentences)]


_ONSETS = [
    "b",
    "br",
    "c",
    "d",
    "dr",
    "f",
    "g",
    "gr",
    "h",
    "k",
    "l",
    "m",
    "n",
    "p",
    "r",
    "s",
    "st",
    "t",
    "v",
    "w",
]
_VOWELS = (
    "a",
    "e",
    "i",
    "o",
    "u",
    "ei",
    "ou",
)
_CODAS = (
    "l",
    "n",
    "r",
    "s",
    "th",
    "m",
    "nd",
    "rk",
    "ld",
    "x",
)


def name(rng: random.Random) -> str:
    """An invented proper name."""
    syllables = rng.choice((2, 2, 3))
    parts = [rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(syllables)]
    return ("".join(parts) + rng.choice(_CODAS)).capitalize()


def names(rng: random.Random, count: int) -> list[str]:
    """Different invented names."""
    found: dict[str, None] = {}
    while len(found) < count:
        found[name(rng)] = None
    return list(found)
