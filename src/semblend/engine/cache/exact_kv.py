"""Exactly computed K/V that may become prefix pages and donors."""

from __future__ import annotations

from dataclasses import dataclass

from semblend.core.namespace import Namespace
from semblend.core.tokens import TokenArray
from semblend.engine.cache.pages import PageTable


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactKv:
    """Exactly computed K/V in the pool. The caller holds the pages while passing it on."""

    name: str
    """The request it was computed for."""
    tokens: TokenArray
    table: PageTable
    share_key: bytes
    namespace: Namespace
