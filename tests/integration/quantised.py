"""Tiny models with quantised weights, as the usual tools write them, in a few lines each.

Weights are rounded to the nearest value, without calibration: what matters here is the format.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

Tensors = dict[str, torch.Tensor]
GROUP = 32
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
_SHIFTS = torch.arange(0, 32, 4, dtype=torch.int64)
_FP8_MOST = 448.0


def quantise(source: Path, folder: Path, method: str) -> None:
    """Write the model at `source` to `folder` with its linear layers quantised by `method`."""
    layer, stated = METHODS[method]
    tensors: Tensors = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        if name.startswith("model.layers.") and name.endswith("_proj.weight"):
            stem = name.removesuffix(".weight")
            made = layer(tensor.float())
            tensors |= {f"{stem}.{part}": value.contiguous() for part, value in made.items()}
        else:
            tensors[name] = tensor.bfloat16()
    config: dict[str, Any] = json.loads((source / "config.json").read_text())
    if scheme := stated.get("kv_cache_scheme"):
        tensors |= _kv_scales(config, scheme["strategy"])
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config |= {"quantization_config": stated, "dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(config))
    for file in source.iterdir():
        if file.suffix != ".safetensors" and file.name != "config.json":
            shutil.copy(file, folder / file.name)


def _awq(weight: torch.Tensor) -> Tensors:
    """AutoAWQ's: four bits with a zero point, eight outputs interleaved in a word."""
    grouped = weight.T.reshape(-1, GROUP, weight.shape[0])
    low, high = grouped.amin(1), grouped.amax(1)
    scales = ((high - low) / 15).clamp(min=1e-5)
    zeros = (-low / scales).round().clamp(0, 15)
    values = (grouped / scales[:, None] + zeros[:, None]).round().clamp(0, 15)
    return {
        "qweight": _packed(values.reshape(weight.shape[1], -1), _AWQ_ORDER),
        "qzeros": _packed(zeros, _AWQ_ORDER),
        "scales": scales.bfloat16(),
    }


def _gptq(weight: torch.Tensor) -> Tensors:
    """GPTQ's: four bits around eight, eight inputs in a word."""
    inputs, outputs = weight.shape[1], weight.shape[0]
    grouped = weight.T.reshape(-1, GROUP, outputs)
    scales = (grouped.abs().amax(1) / 7).clamp(min=1e-5)
    values = ((grouped / scales[:, None]).round() + 8).clamp(0, 15).reshape(inputs, outputs)
    middle = torch.full_like(scales, 7.0)  # the format stores a zero point less one
    return {
        "qweight": _packed(values.T, range(8)).T,
        "qzeros": _packed(middle, range(8)),
        "scales": scales.bfloat16(),
        "g_idx": torch.arange(inputs, dtype=torch.int32) // GROUP,
    }


def _int8(weight: torch.Tensor) -> Tensors:
    """compressed-tensors': eight bits, a scale an output; activations are rounded as they come."""
    scales = (weight.abs().amax(1, keepdim=True) / 127).clamp(min=1e-8)
    return {
        "weight": (weight / scales).round().to(torch.int8),
        "weight_scale": scales.bfloat16(),
    }


def _fp8(weight: torch.Tensor) -> Tensors:
    """The same with eight-bit floats."""
    scales = (weight.abs().amax(1, keepdim=True) / _FP8_MOST).clamp(min=1e-8)
    return {
        "weight": (weight / scales).to(torch.float8_e4m3fn),
        "weight_scale": scales.bfloat16(),
    }


def _kv_scales(config: dict[str, Any], strategy: str) -> Tensors:
    """Scales under which K of a tiny model fills fp8, and some of it is clipped."""
    count = config["num_key_value_heads"] if strategy == "attn_head" else 1
    shape = (count, 1, 1) if strategy == "attn_head" else (1,)
    steps = torch.linspace(1.0, 0.6, count).view(shape)
    return {
        f"model.layers.{layer}.self_attn.{part}_scale": 0.012 * steps * (1 + layer / 8)
        for layer in range(config["num_hidden_layers"])
        for part in "kv"
    }


def _packed(values: torch.Tensor, order: Any) -> torch.Tensor:
    """Eight neighbouring four-bit values of a row in one word, the lowest bits first."""
    grouped = values.to(torch.int64).reshape(values.shape[0], -1, 8)[:, :, list(order)]
    words = (grouped << _SHIFTS).sum(-1)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def _compressed(kind: str) -> dict[str, Any]:
    numbers = {"num_bits": 8, "type": kind, "symmetric": True}
    return {
        "quant_method": "compressed-tensors",
        "format": f"{kind}-quantized",
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {**numbers, "strategy": "channel", "dynamic": False},
                "input_activations": {**numbers, "strategy": "token", "dynamic": True},
            }
        },
    }


def _with_kv(strategy: str) -> dict[str, Any]:
    numbers = {"num_bits": 8, "type": "float", "symmetric": True}
    scheme = {**numbers, "strategy": strategy, "dynamic": False}
    return {**_compressed("float"), "kv_cache_scheme": scheme}


METHODS: dict[str, tuple[Callable[[torch.Tensor], Tensors], dict[str, Any]]] = {
    "awq": (
        _awq,
        {
            "quant_method": "awq",
            "version": "gemm",
            "bits": 4,
            "group_size": GROUP,
            "zero_point": True,
            "modules_to_not_convert": ["lm_head"],
        },
    ),
    "gptq": (
        _gptq,
        {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": True},
    ),
    "int8": (_int8, _compressed("int")),
    "fp8": (_fp8, _compressed("float")),
    "fp8kv": (_fp8, _with_kv("tensor")),
    "fp8heads": (_fp8, _with_kv("attn_head")),
}
"""How a matrix is written, and what `config.json` says of it."""
