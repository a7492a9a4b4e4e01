"""Data parallelism: which of several replicas of one engine this is.

Replicas of a dense model are engines of their own, and vLLM tells each that it is the only one.
They share what their machine has: folders, and a name in the fleet.
"""

from __future__ import annotations

from typing import Any


def replica_of(config: Any) -> int:
    """This replica's number; 0 where there is one."""
    parallel = config.parallel_config
    return int(getattr(parallel, "data_parallel_index", None) or parallel.data_parallel_rank or 0)
