"""Exactly computed K/V on its way to others: what may become prefix pages and donors."""

from __future__ import annotations

from dataclasses import dataclass

from semblend.core.namespace import Namespace
from semblend.core.tokens import TokenArray
from semblend.engine.pages import PageTable


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactKv:
    """Exactly computed K/V in the pool; the caller holds the pages while it hands this over."""

    name: str
    """Of the request it was computed for."""
    tokens: TokenArray
    table: PageTable
    share_key: bytes
    namespace: Namespace
