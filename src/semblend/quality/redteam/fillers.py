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

QUOTED = (
    ', who said "The winter was long. Nobody came to us. We waited here." and left,',
    " (The roads were bad. People stayed at home. Nothing was sold. Nobody cared.)",
    ", author of “The wind is cold. The bells are silent. Nothing stirs.” and of songs,",
    ' – "It was late. Everybody slept. Nothing moved. The rain went on." –',
    ", known for « La porte est ouverte. Personne ne vient. Tout est calme. » and for wine,",
    " [The page is torn here. Some words are missing. The ink is pale.]",
)
SCRIPTS = (
    "（春。山田。）",
    ", 「こんにちは。元気です。」 as they say,",
    "！？ 。 of the east,",
    ", كما يقال؟ نعم،",
    ", राम। श्याम। of the south,",
    ", Ձմեռ։ Գարուն։ of the hills,",
    ", ሰላም። of the highlands,",
    ", ¡Vaya! ¿Y qué?,",
    ", „Ja.“ und «Nein.»,",
    ", Τι; Ναι. of the islands,",
)
INITIALS = (
    ", friend of J. R. Hall and of C. D. Moor,",
    ", of the firm A. B. Stone,",
    ", pupil of George W. Field,",
    ", reader of vitamin C. The book,",
    ", son of M. and of P. Waters,",
)
ADDRESSES = (
    ", of www.town.org and mail.town.org,",
    ", found in report.v2.final.txt,",
    ", at clerk@town.org. by letter,",
    ", under 10.0.0.1 or so,",
    ", section 4.2.1. of the rules,",
)
LONG_ABBREVIATIONS = (
    ", cousin of Theod. Mann and of Fried. Brandt,",
    ", of the Intern. Trade Assn. In town,",
    ", after Gener. Wood and Lieut. Stone,",
    ", cf. Suppl. Two and Append. Three,",
    ", of the Polytechn. School and the Philharm. Hall,",
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
        "quoted": QUOTED,
        "scripts": SCRIPTS,
        "initials": INITIALS,
        "addresses": ADDRESSES,
        "long_abbreviation": LONG_ABBREVIATIONS,
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
