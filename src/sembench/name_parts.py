"""Syllables for made-up proper nouns."""

from __future__ import annotations

NAME_STARTS = (
    "Al",
    "Bren",
    "Cor",
    "Dal",
    "Esk",
    "Fen",
    "Gar",
    "Hol",
    "Ives",
    "Jor",
    "Kel",
    "Lor",
    "Mar",
    "Nes",
    "Or",
    "Pel",
    "Quin",
    "Ros",
    "Sten",
    "Tor",
    "Ul",
    "Var",
    "Wes",
    "Yar",
)
NAME_MIDDLES = ("an", "be", "co", "da", "el", "fo", "gra", "hi", "la", "mo", "ni", "ra", "sa", "ti")
NAME_ENDS = (
    "bury",
    "dale",
    "field",
    "gard",
    "holm",
    "ick",
    "mere",
    "ness",
    "port",
    "ring",
    "stead",
    "ton",
    "vale",
    "wick",
)
