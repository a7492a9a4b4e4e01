"""Settings that act in some places only: setting one elsewhere is said, never passed over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from semblend.core.errors import SettingsError
from semblend.core.settings import EmbedderKind, Settings, variable

BY_MEANING = ("embedder", "embedder_model", "min_similarity", "fuzzy_chunks")
"""Settings of discovery by meaning, which needs a prompt's text and a thread to embed it on."""


def unheeded(environ: Mapping[str, str], *, here: str, keys: Iterable[str] = ()) -> str:
    """What to warn about at start where donors are found by tokens alone; empty if nothing.

    Parameters
    ----------
    here
        What is starting, for people.
    keys
        Options of the same kind that were given another way.
    """
    names = [variable(name) for name in BY_MEANING if _asks_for_more(name, environ)]
    names.extend(keys)
    if not names:
        return ""
    acts = Settings.acts_in("embedder")
    return (
        f"no effect here: {', '.join(names)}. {here} finds donors by their tokens alone. "
        f"Discovery by meaning acts in {acts} (docs/settings.md)"
    )


def _asks_for_more(name: str, environ: Mapping[str, str]) -> bool:
    """Whether a variable is set to something that would have to be done."""
    stated = environ.get(variable(name), "").strip()
    if not stated:
        return False
    try:
        value = getattr(Settings.from_mapping({name: stated}), name)
    except SettingsError:
        return True  # Whoever reads it says what is wrong with it; here nobody does.
    return value is not EmbedderKind.NONE and value is not False
