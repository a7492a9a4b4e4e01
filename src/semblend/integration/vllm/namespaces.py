"""Namespaces of vLLM requests: what must be equal for two of them to share K/V.

vLLM's own tenant boundary is the request's `cache_salt`; it is one of the parts, so
donors of one salt are never found under another, nor without one.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from pathlib import Path
from typing import Any

from semblend.core.namespace import NONE, Namespace
from semblend.core.settings import Settings
from semblend.integration.vllm.options import ConnectorOptions

_HEADER_BYTES = 1 << 20
_UNSALTED = "semblend:ns:no-cache-salt"


def engine_namespace(config: Any, options: ConnectorOptions, settings: Settings) -> Namespace:
    """The parts that are the engine's; requests add theirs with :func:`of_request`."""
    model, cache = config.model_config, config.cache_config
    dtype = str(model.dtype).removeprefix("torch.")
    cache_dtype = str(cache.cache_dtype)
    return Namespace(
        model=options.model_id or str(model.model),
        model_revision=_weights_revision(model),
        tokenizer=str(model.tokenizer),
        tokenizer_revision=str(model.tokenizer_revision or _weights_revision(model)),
        kv_dtype=dtype,
        cache_dtype=dtype if cache_dtype == "auto" else cache_dtype,
        quantization=str(model.quantization or NONE),
        adapter=NONE,
        rope=_rope(model.hf_text_config),
        tensor_parallel=int(config.parallel_config.tensor_parallel_size),
        block_size=int(cache.block_size),
        cache_layout="segments:layers,2,tokens,kv_heads,head_dim",
        tenant=settings.donor_tenant,
        template=settings.donor_template,
        cache_salt=NONE,
    )


def of_request(engine: Namespace, cache_salt: str | None) -> Namespace:
    """The namespace of one request under this engine."""
    return engine.with_parts(cache_salt=isolation_of(cache_salt))


def isolation_of(cache_salt: str | None) -> str:
    """A salt's name in namespaces, which does not reveal the salt."""
    if cache_salt is None or not cache_salt.strip():
        return _UNSALTED
    return "semblend:ns:salt:" + hashlib.sha256(cache_salt.strip().encode()).hexdigest()[:32]


def shown(namespace: Namespace) -> str:
    """The short name of a namespace in log lines and audit records."""
    parts = (
        namespace.model,
        namespace.tokenizer,
        namespace.block_size,
        namespace.kv_dtype,
        namespace.cache_salt,
        namespace.adapter,
    )
    return "vllm:" + hashlib.sha256("|".join(map(str, parts)).encode()).hexdigest()[:16]


def _rope(text_config: Any) -> str:
    from semblend.core.errors import UnsupportedRotaryError
    from semblend.kv.rotary_spec import RotarySpec

    try:
        return RotarySpec.from_config(text_config).fingerprint()
    except UnsupportedRotaryError:
        # Discovery runs with any model; what its configuration says tells two of them apart.
        stated = getattr(text_config, "rope_parameters", None)
        return "unmovable:" + json.dumps(stated, sort_keys=True, default=str)


def _weights_revision(model: Any) -> str:
    """What pins the weights: a revision, a folder's files, or this process alone.

    Files are known by name, size, time and the first megabyte (a safetensors
    header): reading all of a large model would hold up the start for minutes.
    """
    folder = Path(str(model.model))
    if folder.is_dir():
        digest = hashlib.sha256()
        for file in sorted(folder.glob("*.safetensors")) + sorted(folder.glob("config.json")):
            stat = file.stat()
            digest.update(f"{file.name}:{stat.st_size}:{stat.st_mtime_ns};".encode())
            with file.open("rb") as opened:
                digest.update(opened.read(_HEADER_BYTES))
        return "files:" + digest.hexdigest()[:32]
    pinned = getattr(model.hf_config, "_commit_hash", None) or model.revision
    return f"revision:{pinned}" if pinned else f"process:{_PROCESS}"


_PROCESS = secrets.token_hex(16)
"""Stands in for a revision nobody states: equal to itself, in this process only."""
