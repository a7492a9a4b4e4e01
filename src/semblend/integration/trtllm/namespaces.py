"""Namespaces of TensorRT-LLM requests: what must be equal for two of them to share K/V.

Every part is read from the engine. A part that cannot be read stays unknown, and an
engine with an unknown part loads nothing: it discovers under a name that is true in this
process alone.
"""

from __future__ import annotations

from semblend.core.namespace import NONE, Namespace
from semblend.core.settings import Settings
from semblend.integration.isolation import UNSALTED
from semblend.integration.loaded_model import checkpoint, model_identity
from semblend.integration.trtllm.engine_facts import EngineFacts
from semblend.integration.trtllm.options import ConnectorOptions

LAYOUT = "trtllm:blocks,layers,2,kv_heads,tokens,head_dim"


def engine_namespace(
    facts: EngineFacts, options: ConnectorOptions, settings: Settings
) -> Namespace:
    """The parts that are the engine's; requests add their salts to them."""
    revision = options.model_revision or checkpoint.revision_of(
        facts.folder, facts.hf_config, facts.revision
    )
    return Namespace(
        model=options.model_id or facts.model,
        model_revision=revision,
        tokenizer=facts.tokenizer,
        tokenizer_revision=(
            revision
            if facts.tokenizer == facts.model
            else checkpoint.tokenizer_revision(facts.tokenizer)
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


def shown(namespace: Namespace) -> str:
    """The short name of a namespace in audit records."""
    return model_identity.shown("trtllm", namespace)
