"""What comes between a changed word and the fact asked for: words, and marks that mimic ends."""

from __future__ import annotations

import random

PHRASES = (
    "on a cold day",
    "since the spring",
    "with two old friends",
    "after the long winter",
    "near the stone bridge",
    "under the green hill",
    "for a short while",
    "without any haste",
    "among the quiet people",
    "against all advice",
    "before the harvest",
    "during the fair",
)
CLAUSES = (
    ", as the council wrote,",
    " (so the clerk told us)",
    " – nobody knows why –",
    ", who came late,",
    ", it is said,",
    "; in truth",
)
ABBREVIATIONS = (
    ", a.k.a. the old one,",
    ", of Smith & Co. in the town,",
    ", cousin of St. Mary,",
    " (see p. 12)",
    ", of Brown Ltd. by the sea,",
    ", e.g. on Sundays,",
    ", approx. forty years old,",
    ", friend of Dr. Martin,",
    ", i.e. the younger,",
    ", formerly of the U.S. Army,",
    ", member no. 7 of the club,",
    ", Jr. to all,",
    ", cf. vol. 3 of the book,",
    ", of Mr. and Mrs. Hall,",
    ", at 5 p.m. or so,",
    ", et al. in the papers,",
)
FOREIGN = (
    ", d. h. der Alte,",
    ", z. B. am Sonntag,",
    ", geb. am 3. Mai in der Stadt,",
    ", bzw. sein Bruder,",
    ", p. ej. el viejo,",
    ", dit M. le Comte,",
    ", c.-à-d. le vieux,",
    ", ca. vierzig Jahre alt,",
    ", т. е. старый,",
    "（山田。）",
    ", ¿quién sabe? dicen,",
    ", np. w niedzielę,",
    ", o.l.v. de heer,",
)
NUMBERS = (
    ", aged 3.5 times ten,",
    ", at 12. Main Street,",
    ", number 7. of nine,",
    ", since 10. June,",
    ", version 2.0. of the plan,",
)
STOPS = (
    ', who said "Wait! Where to?" and left,',
    ", well ... Perhaps,",
    ", the Yahoo! man,",
    ", author of Who? and of Why?",
    ", called Hey! by all,",
    " [sic!] In short",
    ", (he laughed.) Later",
)


def filler(kind: str, words: int, rng: random.Random) -> str:
    """About `words` words, starting with a space or a mark; empty for none."""
    if words == 0:
        return ""
    marks = {
        "abbreviation": ABBREVIATIONS,
        "foreign": FOREIGN,
        "numbers": NUMBERS,
        "stops": STOPS,
        "clauses": CLAUSES,
    }.get(kind)
    text = rng.choice(marks) if marks else ""
    phrases = rng.sample(PHRASES, len(PHRASES))
    at = 0
    while len(text.split()) < words:
        text += " " + phrases[at % len(phrases)]
        at += 1
        if marks and at % 4 == 0:
            text += rng.choice(marks)
    return _wrapped(text) if kind == "wrapped" else text


def _wrapped(text: str) -> str:
    """Break lines inside the sentence, as mail programs and PDFs do."""
    words = text.split()
    parts = ["\n" if at % 5 == 2 else " " for at in range(len(words))]
    return "".join(part + word for part, word in zip(parts, words, strict=True))
