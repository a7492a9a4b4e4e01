"""Untrusted JSON: anything wrong with it is a ValueError."""

from __future__ import annotations

import json
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """Parse JSON text.

    Raises
    ------
    ValueError
        If it is not JSON, or is nested too deeply (the standard library raises
        RecursionError then, which no caller expects).
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
