"""A Hugging Face causal language model, checked and ready for segmented passes."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError

from semblend.core.errors import MissingExtraError, SettingsError, UnsupportedModelError
from semblend.engine.attention import BATCH_ARGUMENT, register_attention
from semblend.engine.batch import SequenceBatch
from semblend.engine.cache.pool import KvShape
from semblend.engine.support import check_supported, windows_of
from semblend.kv.fingerprint import tokenizer_fingerprint, weights_fingerprint
from semblend.kv.rotary_self_test import self_test
from semblend.kv.rotary_spec import RotarySpec
from semblend.kv.rotary_table import RotaryTable

if TYPE_CHECKING:
    from semblend.engine.cuda.fused_pass import CudaPasses

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A supported model on its device, with our attention and its properties."""

    name: str
    model: Any
    tokenizer: Any
    """None for a model without one (tests, benchmarks with random weights)."""
    kv_shape: KvShape
    rotary: RotaryTable
    """The model's own cosine and sine rows, on its device."""
    rope: str
    """The complete rotary configuration, for the namespace."""
    max_positions: int
    vocab_size: int
    eos_token_ids: frozenset[int]
    fingerprint: str
    tokenizer_fingerprint: str
    windows: tuple[int | None, ...]
    """Tokens a query of each layer sees, itself included; None for all before it."""
    passes: CudaPasses | None = None
    """Our GPU passes for this model; None if transformers computes them."""

    @property
    def architecture(self) -> str:
        """The model's class."""
        return type(self.model).__name__

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.model.parameters()).device  # type: ignore[no-any-return]

    @torch.inference_mode()
    def forward(self, batch: SequenceBatch) -> torch.Tensor:
        """Run one pass and return the wanted rows' logits, [wanted, vocabulary], in float32."""
        output = self.model(
            input_ids=batch.input_ids,
            position_ids=batch.positions,
            use_cache=False,
            logits_to_keep=batch.logit_rows,
            **{BATCH_ARGUMENT: batch},
        )
        return output.logits[0].float()  # type: ignore[no-any-return]


def load_model(
    name: str, *, device: str = "auto", dtype: str = "auto", tokenizer: str | None = None
) -> LoadedModel:
    """Load a model by folder or hub name.

    Parameters
    ----------
    device
        "auto" uses a CUDA device if there is one.
    dtype
        "auto" is float32 on a CPU and bfloat16 on a GPU.

    Raises
    ------
    SettingsError
        If there is no such device.
    UnsupportedModelError, UnsupportedRotaryError
        If there is no such model, or segmented prefill is not proven for one of its features.
    """
    transformers = _transformers()
    where = _pick_device(device)
    kind = _pick_dtype(dtype, where)
    try:
        config = transformers.AutoConfig.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise UnsupportedModelError(
            f"{name}: neither a model folder nor available from the hub ({error}). A "
            f"clone of SemBlend has one in models/semblend-reference-27m"
        ) from error
    check_supported(config)
    try:
        # Other weight files are pickles, which can contain code.
        model = transformers.AutoModelForCausalLM.from_pretrained(
            name, dtype=kind, use_safetensors=True
        ).to(where)
    except (OSError, SafetensorError) as error:
        raise UnsupportedModelError(f"{name}: expected safetensors weights: {error}") from error
    return wrap_model(
        model,
        name=name,
        tokenizer=transformers.AutoTokenizer.from_pretrained(tokenizer or name),
        folder=_folder(name),
    )


def wrap_model(
    model: Any,
    *,
    name: str,
    tokenizer: Any = None,
    folder: Path | None = None,
    fingerprint: str | None = None,
) -> LoadedModel:
    """Prepare a model that is already in memory. It uses our attention from then on.

    The rotary self-test runs first, while the model still has its own attention. `fingerprint`
    identifies weights that need no hashing, such as random ones for a benchmark.
    """
    config = model.config
    check_supported(config)
    model.eval()
    dtype = next(model.parameters()).dtype
    spec = RotarySpec.from_config(config)
    rotary = RotaryTable.from_model_rotary(
        model.model.rotary_emb, config.max_position_embeddings, pairing=spec.pairing, dtype=dtype
    )
    self_test(model, rotary)
    model.set_attn_implementation(register_attention())
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    return LoadedModel(
        name=name,
        model=model,
        tokenizer=tokenizer,
        kv_shape=KvShape(
            layers=config.num_hidden_layers,
            kv_heads=kv_heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
            dtype=dtype,
        ),
        rotary=rotary,
        rope=spec.fingerprint(),
        max_positions=config.max_position_embeddings,
        vocab_size=config.vocab_size,
        eos_token_ids=_eos_ids(model, tokenizer),
        fingerprint=fingerprint or weights_fingerprint(model, config, folder),
        tokenizer_fingerprint=tokenizer_fingerprint(tokenizer),
        windows=windows_of(config),
        passes=_gpu_passes(model, rotary, heads // kv_heads, kv_heads),
    )


def _gpu_passes(model: Any, rotary: RotaryTable, groups: int, kv_heads: int) -> CudaPasses | None:
    """Our own GPU passes, if there is a GPU and Triton is installed."""
    if not rotary.cos.is_cuda or find_spec("triton") is None:
        return None
    from semblend.engine.cuda.fused_models import fits
    from semblend.engine.cuda.fused_pass import CudaPasses

    if not fits(model, rotary):
        return None
    return CudaPasses(model, rotary, groups=groups, kv_heads=kv_heads)


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise MissingExtraError(
            package="transformers", extra="engine", purpose="the embedded engine"
        ) from error
    return transformers


def _auto_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _pick_device(device: str) -> torch.device:
    if device == "auto":
        return torch.device(_auto_device())
    try:
        where = torch.device(device)
    except RuntimeError:
        where = torch.device("meta")
    if where.type not in ("cpu", "cuda"):
        raise SettingsError(f"device {device!r}: expected cpu, cuda, cuda:N or auto")
    if where.type == "cuda" and (where.index or 0) >= torch.cuda.device_count():
        there = torch.cuda.device_count() or "no"
        raise SettingsError(f"device {device!r}: torch finds {there} CUDA devices; use cpu or auto")
    return where


def _pick_dtype(dtype: str, device: torch.device) -> torch.dtype:
    if dtype == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    if dtype not in _DTYPES:
        raise UnsupportedModelError(f"dtype {dtype!r}: expected auto, {', '.join(_DTYPES)}")
    return _DTYPES[dtype]


def _folder(name: str) -> Path | None:
    """Where the weights of a folder or hub name are on disk."""
    if Path(name).is_dir():
        return Path(name)
    from transformers.utils.hub import cached_file

    config = cached_file(name, "config.json", local_files_only=True)
    return None if config is None else Path(config).parent


def _eos_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    ids: set[int] = set()
    for source in (model.config, getattr(model, "generation_config", None), tokenizer):
        value = getattr(source, "eos_token_id", None)
        if isinstance(value, int):
            ids.add(value)
        elif value is not None:
            ids.update(value)
    return frozenset(ids)
