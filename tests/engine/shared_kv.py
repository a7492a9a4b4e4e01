"""The oracle of exactness: everything an engine would share is what a cold prefill computes."""

from __future__ import annotations

import numpy as np
import torch

from semblend.core.tokens import TokenArray
from semblend.engine.cache.pages import PageTable
from semblend.engine.engine import EmbeddedEngine
from tests.engine.donors import cold_kv

TOLERANCE = 1e-4
"""Passes of other sizes round differently. Approximate K/V of a random model is off by tenths."""


def cached_prefixes(engine: EmbeddedEngine) -> list[tuple[TokenArray, PageTable]]:
    """Every prefix in the exact cache up to each of its pages: its tokens and where they lie."""
    prefixes = engine._prefixes
    assert prefixes is not None
    found = []
    for key in prefixes._entries:
        tokens, pages, at = [], [], key
        while (entry := prefixes._entries.get(at)) is not None:
            tokens.append(entry.tokens)
            pages.append(entry.page)
            at = entry.parent
        table = PageTable(
            pages=np.asarray(pages[::-1], dtype=np.int32), page_size=engine.pool.page_size
        )
        found.append((np.concatenate(tokens[::-1]), table))
    return found


def assert_shared_kv_is_cold(engine: EmbeddedEngine) -> int:
    """Compare all prefix pages and all donors with cold; returns how many were compared."""
    engine.donors.wait()
    compared = 0
    for tokens, table in engine._worker.call(lambda: cached_prefixes(engine)):
        held = engine.pool.read(table, 0, len(tokens))
        torch.testing.assert_close(held, cold_kv(engine.model, tokens), atol=TOLERANCE, rtol=0)
        compared += 1
    for donor_id, tokens, _ in engine.donors.inventory():
        cold = cold_kv(engine.model, tokens)
        with engine.donors.lease(donor_id, 0, len(tokens)) as donor:
            for piece in donor.pieces:
                end = piece.start + piece.kv.shape[2]
                torch.testing.assert_close(
                    piece.kv.to(cold.device), cold[:, :, piece.start : end], atol=TOLERANCE, rtol=0
                )
        compared += 1
    return compared
