"""Sentence ends that are certain.

A full stop may close an abbreviation ("St.", "p. 12", "z. B."), an ordinal or a list number, and a
line may break inside a sentence. Anything doubtful does not count as an end. A policy that
recomputes up to an end then continues to the next one, which costs tokens but never a fact.
"""

from __future__ import annotations

import re

FULL_STOPS = ".。｡।"
MARKS = FULL_STOPS + "?!…！？؟"
CLOSERS = "\"'”’)]»）」』"
LOWER_LETTERS = 4
"""Fewest letters of a lower-case word before a full stop. Shorter ones are often abbreviations."""
CAPITAL_LETTERS = 5
"""Fewest letters of a capitalised word: "Prof.", "Ltd.", "Mrs." have fewer."""
NUMBER_DIGITS = 3
"""Fewest digits of a number: smaller ones are ordinals or counts ("3. Mai", "No. 7.")."""

_ENGLISH = """
abbr approx appt assoc attn blvd bldg calif capt cont corp dept dist elev esp excl govt hosp illus
incl inst messrs misc orig pres prob prof pseud publ resp sept supt temp transl univ viz vols
"""
_GERMAN = """
abschn bspw bzgl dipl einschl entspr evtl gebr gegr geschl gest ggfs inkl insb jahrh kath sogen
tägl ungef usw verh vermutl zzgl
"""
_OTHERS = """
admón aprox atte avda depto dpto ejem ejmo núms págs telef exem réf suiv dott segg bijv enkz
ongev nast tzn проф акад напр
"""
ABBREVIATIONS = frozenset(f"{_ENGLISH} {_GERMAN} {_OTHERS}".split())
"""Abbreviations too long for the limits above to catch."""
_ENGLISH_OPENERS = """
a after all also although an and another any as at because before behind between both but by during
each even every few finally for from he her here his how however if in instead it its later many
most my near neither nobody nor not nothing now on once one only or our over perhaps she since so
some soon still such that the their then there these they this those though through thus to today
under until we what when where whether which while who why with without you your
"""
_OTHER_OPENERS = """
aber als am auch auf aus bei das dem der die dies diese dieser doch ein eine einen er es für hier
ihr ihre im ist nach nicht noch nun ob oder seine seit sie über um und vor wenn wie wir zu zum zur
avec ce ces cette dans depuis elle elles en et il ils lors mais nous ou où pendant pour puis quand
sans sur un une vous aunque como con cuando desde donde ella ellos entre esta este esto mientras
para pero por porque según sin sobre su sus también tras una y ya
"""
OPENING_WORDS = frozenset(f"{_ENGLISH_OPENERS} {_OTHER_OPENERS}".split())
"""Words that start sentences and no names ("La", "De" and "Von" start both)."""

_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*\Z")
_FIRST = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
_VOWEL = re.compile(r"[aeiouyäöüáéíóúàèìòùâêîôûåæøœ]", re.IGNORECASE)
_BLANK_LINE = re.compile(r"[^\S\n]*\n[^\S\n]*\n")
TURN = re.compile(r"\s*(?:<[|｜/]?[\w▁:-]+[|｜]?>|\[/?INST\])\s*")
"""A token that ends or starts a chat turn."""


def is_sure_end(before: str, after: str) -> bool:
    """Whether a sentence certainly ends between two texts.

    Parameters
    ----------
    before
        The text up to the end of a token that may close a sentence. A few words are enough.
    after
        The text after it. One word is enough. Empty is the end of the prompt.

    >>> is_sure_end("It was sold to a farmer.", " The")
    True
    >>> [is_sure_end(text, " The") for text in ("cousin of St.", "see p. 12.", "a.k.a.", "etc.")]
    [False, False, False, False]
    """
    if ends_block(before, after):
        return True
    said = before.rstrip()
    space = before[len(said) :] + after
    # Brackets and quotations can hold whole sentences inside others. "Who?", "Hey!" and three dots
    # also occur inside sentences.
    if said[-1:] not in tuple(FULL_STOPS) or said[-2:-1] in tuple(MARKS):
        return False
    if said[-1] != ".":
        return space[:1] not in CLOSERS
    return _opens_sentence(space) and _closes_sentence(said[:-1], _first_word(space))


def ends_block(before: str, after: str) -> bool:
    """Whether a sentence ends there together with its paragraph, turn or prompt."""
    kept = before.rstrip()
    said = kept.rstrip(CLOSERS)
    if not said or said[-1] not in MARKS:
        return False
    return not after or bool(_BLANK_LINE.match(before[len(kept) :] + after) or TURN.match(after))


def _opens_sentence(text: str) -> bool:
    if not text[:1].isspace():
        return False
    first = _opened(text)[:1]
    return first.isalpha() and not first.islower()


def _opened(text: str) -> str:
    return text.strip().lstrip("\"'“‘(«[¿¡")


def _first_word(text: str) -> str:
    found = _FIRST.match(_opened(text))
    return found.group() if found else ""


def _closes_sentence(text: str, following: str) -> bool:
    found = _WORD.search(text)
    if found is None:
        return False
    word, opener = found.group(), text[: found.start()][-1:]
    if opener in (".", "&"):
        return False
    if word.isdigit():
        return len(word) >= NUMBER_DIGITS
    if word.casefold() in ABBREVIATIONS or not word.replace("-", "").isalpha():
        return False
    if word.isascii() and not _VOWEL.search(word):
        return False
    if word.islower():
        return len(word) >= LOWER_LETTERS
    # "Theod. Mann", "Fried. Brandt": only what follows tells a short name from a name.
    known = following.casefold() in OPENING_WORDS
    return known and len(word) >= CAPITAL_LETTERS and not word.isupper()
