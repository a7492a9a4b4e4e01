"""Parse untrusted JSON with a single kind of error."""

from __future__ import annotations

import json
from typing import Any

from semblend.core.errors import SerialisationError


def parse_json(text: str | bytes) -> Any:
    """Parse a JSON text.

    Raises
    ------
    SerialisationError
        If it is not JSON, not text, or too deeply nested
        (for which the standard library raises an unexpected RecursionError).
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise SerialisationError("nested too deeply") from None
    except ValueError as error:
        raise SerialisationError(str(error)) from error
