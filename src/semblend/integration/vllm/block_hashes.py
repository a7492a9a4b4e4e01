"""Keeps approximate K/V out of the exact prefix cache, with prefix caching on.

vLLM publishes a claimed block under `request.block_hashes[i]` when its load has ended. Before
that, when the blocks are allocated, we install a private chain: from the first approximate
block on, random hashes that no other request can compute. Blocks before it are exact and stay
public. Later blocks (tail and decode) chain off the last hash and are therefore private too.
If the first approximate block is the prompt's last and not full, it has no hash yet and would
chain off a public one; then all hashes to come are drawn, too.

Published as K/V events private hashes carry a mark, so that no follower mistakes their blocks for
an exact prefix. A request that continues a chain starts its private hashes with the chain's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from semblend.core.private_hashes import private_hashes


class PrivateChain:
    """One request's block hashes, private from some block on; can be undone.

    Invariant: until :meth:`keep`, :meth:`undo` restores the request exactly.
    """

    __slots__ = ("_kept", "_request", "hasher", "public")

    def __init__(self, request: Any, *, first: int, chain: Sequence[bytes] = ()) -> None:
        """Replace hashes from block `first` on: by those of `chain`, then by random ones."""
        self._request = request
        self._kept = False
        hashes = request.block_hashes
        self.public: tuple[bytes, ...] = tuple(hashes)
        """The hashes vLLM computed, when this chain was installed."""
        self.hasher = request._block_hasher
        """What computes vLLM's hashes."""
        if first >= len(hashes) and self.hasher is not None:
            request._block_hasher = self._drawn
        first = min(first, len(hashes))
        drawn = private_hashes(len(hashes) - first - len(chain))
        hashes[first:] = [*chain, *drawn]

    def keep(self) -> None:
        """The load succeeded: keep the chain for the request's whole life."""
        self._kept = True

    def undo(self) -> None:
        """The load failed: restore the replaced hashes."""
        if not self._kept:
            # In place, because vLLM's block hasher appends to this very list.
            self._request.block_hashes[: len(self.public)] = self.public
            self._request._block_hasher = self.hasher
            self._kept = True

    def _drawn(self, request: Any) -> list[bytes]:
        """Hashes of the blocks that have become full."""
        return private_hashes(len(self.hasher(request)))
