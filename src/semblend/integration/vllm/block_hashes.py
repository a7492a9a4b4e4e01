"""Keeping approximate K/V out of the exact prefix cache, with prefix caching on.

vLLM publishes a claimed block under `request.block_hashes[i]` when its load has ended.
The private chain is put in place before that, when the blocks are allocated: from the
first approximate block on, random hashes that no other request can ever compute. Blocks
before it are exact and stay public; later blocks (tail and decode) chain off the last hash
and so are private by themselves. Published as K/V events they carry a mark, so that nobody who
follows those takes them for an exact prefix.
"""

from __future__ import annotations

from typing import Any

from semblend.core.private_hashes import private_hashes


class PrivateChain:
    """One request's block hashes, made private from some block on; can be undone.

    Owns one invariant: until :meth:`keep`, :meth:`undo` leaves the request as it was.
    """

    __slots__ = ("_original", "_request", "first_private")

    def __init__(self, request: Any, *, first_approximate_token: int, hash_block_size: int) -> None:
        self._request = request
        hashes = request.block_hashes
        self._original: list[Any] | None = list(hashes)
        self.first_private = min(first_approximate_token // hash_block_size, len(hashes))
        hashes[self.first_private :] = private_hashes(len(hashes) - self.first_private)

    def keep(self) -> None:
        """The load ended well: the chain stays for the request's whole life."""
        self._original = None

    def undo(self) -> None:
        """The load failed: put the hashes back that were replaced."""
        if self._original is None:
            return
        # In place: vLLM's block hasher appends to this very list.
        self._request.block_hashes[: len(self._original)] = self._original
        self._original = None
