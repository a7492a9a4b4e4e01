"""vLLM's connector classes, as the installed version has them.

A version without one of the later classes can still be served: what it does not have it does not
ask for. `contract` says what is missing for more than that.
"""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1 import base as _base


def _since(name: str) -> Any:
    """A class that not every version has, or one that says nothing."""
    return getattr(_base, name, None) or type(name, (), {})


KVConnectorBase_V1 = _base.KVConnectorBase_V1
KVConnectorMetadata = _base.KVConnectorMetadata
KVConnectorRole = _base.KVConnectorRole
KVConnectorWorkerMetadata: Any = _since("KVConnectorWorkerMetadata")
SupportsHMA: Any = _since("SupportsHMA")
BASES: tuple[Any, ...] = (KVConnectorBase_V1, SupportsHMA)
