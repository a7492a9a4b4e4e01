"""Tracks which prompts are already donors, so that the same tokens are kept once."""

from __future__ import annotations

import hashlib
import threading

from semblend.core.namespace import Namespace
from semblend.core.tokens import TokenArray


class HeldContents:
    """One donor per content (a namespace's tokens). Thread-safe."""

    def __init__(self) -> None:
        self._donors: dict[bytes, str] = {}
        self._contents: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def reserve(self, donor_id: str, tokens: TokenArray, namespace: Namespace) -> bool:
        """Reserve these tokens for a donor; False if another one has them."""
        content = _content(tokens, namespace)
        with self._lock:
            if content in self._donors:
                return False
            self._donors[content] = donor_id
            self._contents[donor_id] = content
            return True

    def release(self, donor_id: str) -> None:
        """Remove the donor; do nothing if there was none."""
        with self._lock:
            content = self._contents.pop(donor_id, None)
            if content is not None:
                del self._donors[content]

    def clear(self) -> None:
        with self._lock:
            self._donors.clear()
            self._contents.clear()


def _content(tokens: TokenArray, namespace: Namespace) -> bytes:
    return hashlib.blake2b(tokens.tobytes(), key=namespace.key(), digest_size=16).digest()
