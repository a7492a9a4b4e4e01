"""Namespaces of TensorRT-LLM requests: what must be equal for two of them to share K/V.

Every part is read from the engine. A part that cannot be read stays unknown, and an
engine with an unknown part loads nothing: it discovers under a name that is true in this
process alone.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Any

from semblend.core.namespace import NONE, Namespace
from semblend.core.settings import Settings
from semblend.integration.isolation import UNSALTED
from semblend.integration.loaded_model import model_identity
from semblend.integration.trtllm.engine_facts import EngineFacts, files_of
from semblend.integration.trtllm.options import ConnectorOptions

LAYOUT = "trtllm:blocks,layers,2,kv_heads,tokens,head_dim"
_UNKNOWN = f"unknown:{secrets.token_hex(16)}"
"""Equal to itself, in this process only."""


def engine_namespace(
    facts: EngineFacts, options: ConnectorOptions, settings: Settings
) -> Namespace:
    """The parts that are the engine's; requests add their salts to them."""
    revision = options.model_revision or _revision(facts)
    return Namespace(
        model=options.model_id or facts.model,
        model_revision=revision,
        tokenizer=facts.tokenizer,
        tokenizer_revision=(
            revision if facts.tokenizer == facts.model else _tokenizer_revision(facts.tokenizer)
        ),
        kv_dtype=facts.dtype,
        cache_dtype=facts.cache_dtype,
        quantization=facts.quantization,
        adapter=NONE,
        rope=None if facts.text_config is None else model_identity.rope_name(facts.text_config),
        tensor_parallel=facts.tensor_parallel,
        block_size=facts.block_size,
        cache_layout=LAYOUT,
        tenant=settings.donor_tenant,
        template=settings.donor_template,
        cache_salt=UNSALTED,
    )


def for_discovery(namespace: Namespace) -> Namespace:
    """The same with unknown parts named after this process: enough to discover, not to share."""
    numeric = {"tensor_parallel", "block_size"}
    named: dict[str, Any] = {
        part: 1 if part in numeric else _UNKNOWN for part in namespace.unknown_parts
    }
    return namespace.with_parts(**named)


def isolation_by_number(cache_salt_id: int | None) -> str:
    """A salt's name in namespaces, for engines that tell a connector its number alone."""
    return UNSALTED if cache_salt_id is None else f"semblend:ns:salt-id:{cache_salt_id:016x}"


def shown(namespace: Namespace) -> str:
    """The short name of a namespace in audit records."""
    return model_identity.shown("trtllm", namespace)


def _revision(facts: EngineFacts) -> str | None:
    """What pins the weights: the hub's commit, their files, or a revision that is stated."""
    folder = facts.folder
    if folder is None or facts.hf_config is None:
        return f"revision:{facts.revision}" if facts.revision else None
    if folder.parent.name == "snapshots":
        return f"revision:{folder.name}"
    return model_identity.weights_by_files(str(folder), facts.hf_config)


def _tokenizer_revision(tokenizer: str | None) -> str | None:
    """What pins a tokenizer that is not the model's: its files' bytes."""
    folder = None if tokenizer is None else files_of(tokenizer)
    if folder is None:
        return None
    digest = hashlib.sha256()
    for file in sorted(folder.glob("token*")) + sorted(folder.glob("vocab*")):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return "files:" + digest.hexdigest()[:32]
