"""Namespaces of SGLang requests: what must be equal for two of them to share K/V.

SGLang keeps requests apart by `extra_key` (which also names a LoRA adapter) and by
`cache_salt`. Both are in the namespace, so donors of one pair are never found under
another, nor without one.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from pathlib import Path
from typing import Any

from semblend.core.errors import UnsupportedRotaryError
from semblend.core.namespace import NONE, Namespace
from semblend.core.settings import Settings
from semblend.integration.sglang.options import BackendOptions

_HEADER_BYTES = 1 << 20
_UNKEYED = "semblend:ns:no-extra-key"


def engine_namespace(context: Any, options: BackendOptions, settings: Settings) -> Namespace:
    """The parts that are the engine's; requests add theirs with :func:`of_request`.

    `context` is SGLang's TreeCacheBuildContext.
    """
    runner = context.tp_worker.model_runner
    model, pool = runner.model_config, runner.token_to_kv_pool
    revision = _weights_revision(model)
    return Namespace(
        model=options.model_id or str(model.model_path),
        model_revision=revision,
        tokenizer=str(model.model_path),
        tokenizer_revision=revision,
        kv_dtype=str(model.dtype).removeprefix("torch."),
        cache_dtype=str(pool.dtype).removeprefix("torch."),
        quantization=str(model.quantization or NONE),
        adapter=NONE,
        rope=_rope(model.hf_text_config),
        tensor_parallel=int(context.tp_size),
        block_size=int(context.params.page_size),
        cache_layout="slots:nhd",
        tenant=settings.donor_tenant,
        template=settings.donor_template,
        cache_salt=_UNKEYED,
    )


def of_request(engine: Namespace, extra_key: str | None, cache_salt: str | None) -> Namespace:
    """The namespace of one request under this engine."""
    return engine.with_parts(cache_salt=isolation_of(extra_key, cache_salt))


def isolation_of(extra_key: str | None, cache_salt: str | None) -> str:
    """The name of an extra key and a salt in namespaces, which reveals neither."""
    if not extra_key and not cache_salt:
        return _UNKEYED
    both = f"{extra_key or ''}\0{cache_salt or ''}"
    return "semblend:ns:extra-key:" + hashlib.sha256(both.encode()).hexdigest()[:32]


def shown(namespace: Namespace) -> str:
    """The short name of a namespace in audit records."""
    parts = "|".join(
        str(part)
        for part in (
            namespace.model,
            namespace.tokenizer,
            namespace.block_size,
            namespace.kv_dtype,
            namespace.cache_salt,
            namespace.adapter,
        )
    )
    return "sglang:" + hashlib.sha256(parts.encode()).hexdigest()[:16]


def _rope(text_config: Any) -> str:
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
    folder = Path(str(model.model_path))
    if folder.is_dir():
        digest = hashlib.sha256()
        for file in sorted(folder.glob("*.safetensors")) + sorted(folder.glob("config.json")):
            stat = file.stat()
            digest.update(f"{file.name}:{stat.st_size}:{stat.st_mtime_ns};".encode())
            with file.open("rb") as opened:
                digest.update(opened.read(_HEADER_BYTES))
        return "files:" + digest.hexdigest()[:32]
    pinned = getattr(model.hf_config, "_commit_hash", None) or getattr(model, "revision", None)
    return f"revision:{pinned}" if pinned else f"process:{_PROCESS}"


_PROCESS = secrets.token_hex(16)
"""Stands in for a revision nobody states: equal to itself, in this process only."""
