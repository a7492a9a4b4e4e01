"""Which LoRA adapter a request runs with: its name, its number, and the content of its files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from semblend.core.errors import DonorError
from semblend.integration.lora_adapter import LoraAdapter
from semblend.kv.fingerprint import files_fingerprint

_CONFIG = "adapter_config.json"
_MOST = 4096
"""Adapters told apart; requests with further ones are computed."""


class AdapterNames:
    """The adapters seen so far. A name or a number that changes its meaning is not believed."""

    def __init__(self) -> None:
        self._known: dict[int, LoraAdapter] = {}
        self._weights: dict[str, str] = {}

    def of(self, request: Any) -> LoraAdapter:
        """The adapter of one of vLLM's LoRARequests; its files are read once.

        Raises
        ------
        DonorError
            If it cannot be told which weights these are.
        """
        known = self._known.get(request.lora_int_id)
        if known is None:
            known = self._read(request)
            if self._weights.setdefault(known.name, known.weights) != known.weights:
                raise DonorError("another adapter has had this name")
            self._known[known.number] = known
        elif (known.name, known.path) != (request.lora_name, request.lora_path):
            raise DonorError("another adapter has had this number")
        return known

    def _read(self, request: Any) -> LoraAdapter:
        if len(self._known) >= _MOST:
            raise DonorError(f"more than {_MOST} adapters")
        files = [file for pattern in _FILES for file in _folder(request.lora_path).glob(pattern)]
        if not any(file.name == _CONFIG for file in files):
            raise DonorError("its files were not found")
        return LoraAdapter(
            name=request.lora_name,
            number=request.lora_int_id,
            path=request.lora_path,
            weights=files_fingerprint(files),
            fused_experts=bool(getattr(request, "is_3d_lora_weight", False)),
        )


_FILES = (_CONFIG, "*.safetensors", "*.bin", "*.pt")


def _folder(path: str) -> Path:
    """Where vLLM loads an adapter from: a folder, or what it has fetched from the hub."""
    folder = Path(path).expanduser()
    if folder.is_dir():
        return folder
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(path, _CONFIG)
    except HFValidationError:
        found = None
    return Path(found).parent if isinstance(found, str) else folder
