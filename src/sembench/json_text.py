"""JSON that somebody else wrote: whatever is wrong with it is a ValueError."""

from __future__ import annotations

import json
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text.

    Raises
    ------
    ValueError
        If it is not JSON, or nested deeper than the interpreter can follow (the standard
        library raises RecursionError then, which no caller expects).
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
