"""Keeps approximate K/V out of the exact prefix cache, with prefix caching on.

vLLM publishes a claimed block under `request.block_hashes[i]` when its load has ended. Before
that, when the blocks are allocated, we install a private chain: from the first approximate
block on, random hashes that no other request can compute. Blocks before it are exact and stay
public. Later blocks (tail and decode) chain off the last hash and are therefore private too.
Published as K/V events they carry a mark, so that no follower mistakes them for an exact
prefix.
"""

from __future__ import annotations

from typing import Any

from semblend.core.private_hashes import private_hashes


class PrivateChain:
    """One request's block hashes, private from some block on; can be undone.

    Invariant: until :meth:`keep`, :meth:`undo` restores the request exactly.
    """

    __slots__ = ("_original", "_request", "first_private")

    def __init__(self, request: Any, *, first_approximate_token: int, hash_block_size: int) -> None:
        self._request = request
        hashes = request.block_hashes
        self._original: list[Any] | None = list(hashes)
        self.first_private = min(first_approximate_token // hash_block_size, len(hashes))
        hashes[self.first_private :] = private_hashes(len(hashes) - self.first_private)

    def keep(self) -> None:
        """The load succeeded: keep the chain for the request's whole life."""
        self._original = None

    def undo(self) -> None:
        """The load failed: restore the replaced hashes."""
        if self._original is None:
            return
        # In place, because vLLM's block hasher appends to this very list.
        self._request.block_hashes[: len(self._original)] = self._original
        self._original = None
