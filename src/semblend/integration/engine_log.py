"""Routes an adapter's log lines into its engine's own log."""

from __future__ import annotations

import logging


def speak_through(logger: logging.Logger) -> None:
    """Send everything logged under `semblend` where `logger`'s lines go, at its level."""
    ours = logging.getLogger("semblend")
    if ours is not logger and not ours.handlers:
        ours.parent = logger
