"""Which LoRA adapter a request runs with: its name, its number, and the content of its files."""

from __future__ import annotations

from pathlib import Path

from semblend.core.errors import DonorError
from semblend.integration.lora_adapter import LoraAdapter
from semblend.kv.fingerprint import files_fingerprint

_CONFIG = "adapter_config.json"
_FILES = (_CONFIG, "*.safetensors", "*.bin", "*.pt")
_MOST = 4096
"""Adapters told apart; requests with further ones are computed."""


class AdapterNames:
    """The adapters seen so far. A name or a number that changes its meaning is not believed."""

    def __init__(self) -> None:
        self._known: dict[int, LoraAdapter] = {}
        self._weights: dict[str, str] = {}

    def of(self, *, name: str, number: int, path: str, fused_experts: bool = False) -> LoraAdapter:
        """The adapter that a request names; its files are read once.

        Raises
        ------
        DonorError
            If it cannot be told which weights these are.
        """
        known = self._known.get(number)
        if known is None:
            if len(self._known) >= _MOST:
                raise DonorError(f"more than {_MOST} adapters")
            weights = _weights(path)
            if self._weights.setdefault(name, weights) != weights:
                raise DonorError("another adapter has had this name")
            known = self._known[number] = LoraAdapter(
                name=name, number=number, path=path, weights=weights, fused_experts=fused_experts
            )
        elif (known.name, known.path) != (name, path):
            raise DonorError("another adapter has had this number")
        return known


def _weights(path: str) -> str:
    files = [file for pattern in _FILES for file in _folder(path).glob(pattern)]
    if not any(file.name == _CONFIG for file in files):
        raise DonorError("its files were not found")
    return files_fingerprint(files)


def _folder(path: str) -> Path:
    """Where engines load an adapter from: a folder, or what they have fetched from the hub."""
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
