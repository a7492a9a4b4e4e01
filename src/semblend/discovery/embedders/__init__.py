"""Embedders: one file each, behind one interface, by name."""

from semblend.discovery.embedders.base import Embedder, Units, Vectors
from semblend.discovery.embedders.factory import EMBEDDERS, embedder_or_fallback, make_embedder

__all__ = ["EMBEDDERS", "Embedder", "Units", "Vectors", "embedder_or_fallback", "make_embedder"]
