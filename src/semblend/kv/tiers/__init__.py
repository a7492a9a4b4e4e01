"""Storage for exact K/V: device over host over disk, with leases, limits and checksums."""

from __future__ import annotations

from semblend.kv.tiers.base import Lease, TierStats
from semblend.kv.tiers.disk import DiskTier
from semblend.kv.tiers.memory import MemoryTier
from semblend.kv.tiers.stack import TierStack

__all__ = ["DiskTier", "Lease", "MemoryTier", "TierStack", "TierStats"]
