"""Random LoRA adapters of the tests' models, and what such a model computes with one."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.integration.models import folder_of, plain_model

_RANK = 4
_SCALE = 2.0
_SIZE = 0.15
"""Large enough to change every answer, small enough for float32 to follow float64."""
_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")


def _weights(model: str, seed: int) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Low-rank weights of every attention layer."""
    torch.manual_seed(seed)
    return {
        name: (
            torch.randn(_RANK, module.in_features) * _SIZE,
            torch.randn(module.out_features, _RANK) * _SIZE,
        )
        for name, module in plain_model(model).named_modules()
        if name.endswith(_PROJECTIONS)
    }


def write_adapter(folder: Path, model: str, *, seed: int) -> None:
    """Write one as PEFT does."""
    tensors = {}
    for name, (down, up) in _weights(model, seed).items():
        tensors[f"base_model.model.{name}.lora_A.weight"] = down
        tensors[f"base_model.model.{name}.lora_B.weight"] = up
    save_file(tensors, folder / "adapter_model.safetensors")
    says = {
        "peft_type": "LORA",
        "r": _RANK,
        "lora_alpha": _SCALE * _RANK,
        "target_modules": list(_PROJECTIONS),
        "base_model_name_or_path": folder_of(model),
        "bias": "none",
        "task_type": "CAUSAL_LM",
    }
    (folder / "adapter_config.json").write_text(json.dumps(says))


def merged(model: str, *, seed: int) -> Any:
    """The model in plain transformers with the adapter added to its weights."""
    changed = copy.deepcopy(plain_model(model))
    with torch.no_grad():
        for name, (down, up) in _weights(model, seed).items():
            changed.get_submodule(name).weight += _SCALE * up @ down
    return changed
