"""Warn about settings that have no effect where they are set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from semblend.core.errors import SettingsError
from semblend.core.settings import EmbedderKind, Settings, variable

BY_MEANING = ("embedder", "embedder_model", "min_similarity", "fuzzy_chunks")
"""Settings of semantic discovery, which needs a prompt's text and a thread to embed it on."""


def unheeded(environ: Mapping[str, str], *, here: str, keys: Iterable[str] = ()) -> str:
    """The warning to log at start where donors are found by tokens only; empty if none.

    Parameters
    ----------
    here
        What is starting, for people.
    keys
        Options of the same kind, given in other ways.
    """
    names = [variable(name) for name in BY_MEANING if _asks_for_more(name, environ)]
    names.extend(keys)
    if not names:
        return ""
    acts = Settings.acts_in("embedder")
    return (
        f"no effect here: {', '.join(names)}. {here} finds donors by tokens only. "
        f"Semantic discovery is used in {acts} (see docs/settings.md)"
    )


def _asks_for_more(name: str, environ: Mapping[str, str]) -> bool:
    """Whether a variable is set to a value that would need work here."""
    stated = environ.get(variable(name), "").strip()
    if not stated:
        return False
    try:
        value = getattr(Settings.from_mapping({name: stated}), name)
    except SettingsError:
        return True  # The code that reads it reports what is wrong with it.
    return value is not EmbedderKind.NONE and value is not False
