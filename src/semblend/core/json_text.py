"""JSON that somebody else wrote: whatever is wrong with it is one kind of error."""

from __future__ import annotations

import json
from typing import Any

from semblend.core.errors import SerialisationError


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text.

    Raises
    ------
    SerialisationError
        If it is not JSON, not text, or nested deeper than the interpreter can follow
        (the standard library raises RecursionError then, which no caller expects).
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise SerialisationError("nested too deeply") from None
    except ValueError as error:
        raise SerialisationError(str(error)) from error
