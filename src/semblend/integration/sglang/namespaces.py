"""Namespaces of SGLang requests: what must be equal for two of them to share K/V.

SGLang keeps requests apart by `extra_key` (which also names a LoRA adapter) and by
`cache_salt`. Both are in the namespace, so donors of one pair are never found under
another, nor without one.
"""

from __future__ import annotations

from typing import Any

from semblend.core.namespace import NONE, Namespace
from semblend.core.settings import Settings
from semblend.integration import isolation
from semblend.integration.loaded_model import model_identity
from semblend.integration.sglang.options import BackendOptions


def engine_namespace(context: Any, options: BackendOptions, settings: Settings) -> Namespace:
    """The parts that are the engine's; requests add their keys to them.

    `context` is SGLang's TreeCacheBuildContext.
    """
    runner = context.tp_worker.model_runner
    model, pool = runner.model_config, runner.token_to_kv_pool
    revision = model_identity.weights_by_files(
        str(model.model_path), model.hf_config, getattr(model, "revision", None)
    )
    return Namespace(
        model=options.model_id or str(model.model_path),
        model_revision=revision,
        tokenizer=str(model.model_path),
        tokenizer_revision=revision,
        kv_dtype=str(model.dtype).removeprefix("torch."),
        cache_dtype=str(pool.dtype).removeprefix("torch."),
        quantization=model_identity.quantization_name(**quantised(model, context.server_args)),
        adapter=NONE,
        rope=model_identity.rope_name(model.hf_text_config),
        tensor_parallel=int(context.tp_size),
        block_size=int(context.params.page_size),
        cache_layout="slots:nhd",
        tenant=settings.donor_tenant,
        template=settings.donor_template,
        cache_salt=isolation.UNKEYED,
    )


def asked_at_load(model: Any, server_args: Any) -> dict[str, str]:
    """What a certificate must have been measured with to hold for this engine, beside its weights.

    By the names of the certificate's fields, from SGLang's ModelConfig and ServerArgs. Nothing is
    loaded with K/V of another format or with speculation: the adapter refuses both.
    """
    return {
        "quantization": model_identity.added_quantization(**quantised(model, server_args)),
        "kv_format": NONE,
        "speculation": NONE,
    }


def quantised(model: Any, server_args: Any) -> dict[str, Any]:
    """How the weights are quantised, in the words of `model_identity`."""
    return {
        "method": model.quantization,
        "stored": getattr(model.hf_config, "quantization_config", None),
        # Quantises in place, whatever `quantization` says.
        "told": getattr(server_args, "torchao_config", None),
    }
