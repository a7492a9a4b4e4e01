"""What TensorRT-LLM's arguments say about the engine, read defensively.

`TorchLlmArgs` changes between versions. What cannot be read is None, which means
unknown and never "any": whoever needs it refuses.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semblend.core.namespace import NONE
from semblend.integration.loaded_model.checkpoint import config_of, files_of, stored_quantization

_AUTO = (None, "", "auto")
_MISSING = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """One engine. None is "unknown" throughout."""

    model: str | None
    revision: str | None
    tokenizer: str | None
    folder: Path | None
    """Where the model's files are on this machine."""
    hf_config: Any
    """The model's own configuration, or None where it cannot be read."""
    dtype: str | None
    cache_dtype: str | None
    quantization: str | None
    tensor_parallel: int | None
    block_size: int | None
    block_reuse: bool | None = None
    """Whether the engine keeps blocks for later requests."""
    added_quantization: str = NONE
    """What the engine was told to do to weights that are not stored so; "none": nothing."""

    @property
    def text_config(self) -> Any:
        """The language model's part of the configuration."""
        return None if self.hf_config is None else self.hf_config.get_text_config()

    @classmethod
    def of(cls, llm_args: Any) -> EngineFacts:
        """Read them; never raises."""
        model = _text(getattr(llm_args, "model", None))
        revision = _text(getattr(llm_args, "revision", None))
        folder = None if model is None else files_of(model, revision)
        hf_config = config_of(folder)
        cache = getattr(llm_args, "kv_cache_config", None)
        dtype = _dtype(getattr(llm_args, "dtype", None), hf_config)
        return cls(
            model=model,
            revision=revision,
            tokenizer=_text(getattr(llm_args, "tokenizer", None)) or model,
            folder=folder,
            hf_config=hf_config,
            dtype=dtype,
            cache_dtype=_cache_dtype(cache, llm_args, dtype, folder),
            quantization=_quantization(llm_args, folder),
            added_quantization=_added(llm_args, folder),
            tensor_parallel=_whole(getattr(llm_args, "tensor_parallel_size", None)),
            block_size=_whole(getattr(cache, "tokens_per_block", None)),
            block_reuse=getattr(cache, "enable_block_reuse", None),
        )


def _text(value: Any) -> str | None:
    if isinstance(value, str | Path) and str(value):
        return str(value)
    named = getattr(value, "name_or_path", None)  # a tokenizer object
    return named if isinstance(named, str) and named else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _dtype(given: Any, hf_config: Any) -> str | None:
    if given not in _AUTO:
        return str(given).removeprefix("torch.")
    stated = getattr(hf_config, "dtype", None) or getattr(hf_config, "torch_dtype", None)
    return None if stated is None else str(stated).removeprefix("torch.")


def _cache_dtype(cache: Any, llm_args: Any, dtype: str | None, folder: Path | None) -> str | None:
    given = getattr(cache, "dtype", _MISSING)
    if given is _MISSING:
        return None
    if given not in _AUTO:
        return str(given).removeprefix("torch.")
    quantised = _enum(getattr(getattr(llm_args, "quant_config", None), "kv_cache_quant_algo", None))
    stored = stored_quantization(folder)
    if stored is None:
        return None
    return quantised or stored.get("kv_cache_quant_algo") or dtype


def _quantization(llm_args: Any, folder: Path | None) -> str | None:
    """The weights' quantisation; checkpoints state it in files beside them."""
    config = getattr(llm_args, "quant_config", _MISSING)
    stored = stored_quantization(folder)
    if config is _MISSING or stored is None:
        return None
    return _enum(getattr(config, "quant_algo", None)) or stored.get("quant_algo") or NONE


def _added(llm_args: Any, folder: Path | None) -> str:
    """A quantisation that the checkpoint's files do not state; then they do not know of it."""
    told = _enum(getattr(getattr(llm_args, "quant_config", None), "quant_algo", None))
    stored = (stored_quantization(folder) or {}).get("quant_algo")
    return NONE if told is None or told == stored else told


def _enum(value: Any) -> str | None:
    """An enumeration's value as text; None and "no quantisation" are nothing."""
    if value is None:
        return None
    text = str(getattr(value, "value", value))
    return None if text.upper() in ("NONE", "NO_QUANT") else text
