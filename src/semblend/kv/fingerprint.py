"""Content hashes of models and tokenizers: namespace parts that names cannot guarantee."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from functools import lru_cache
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch

_CHUNK_BYTES = 8 * 2**20


def weights_fingerprint(model: torch.nn.Module, config: Any, folder: Path | None) -> str:
    """A content hash of the weights and of what decides how they are used.

    Weights from a folder are hashed as files, cached by path, size and modification time. Files in
    the hub's cache are already named by content. Weights made in memory (tests, benchmarks) are
    hashed by their bytes.
    """
    digest = hashlib.sha256(_canonical(_settings_of(config, folder)).encode())
    files = sorted(folder.glob("*.safetensors")) if folder is not None else []
    if files:
        for file in files:
            digest.update(_content_id(file).encode())
    else:
        for name, tensor in sorted(model.state_dict().items()):
            digest.update(name.encode())
            raw = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
            digest.update(_xxhash().xxh3_128_digest(raw.numpy()))
    return digest.hexdigest()[:32]


def files_fingerprint(files: Iterable[Path]) -> str:
    """A content hash of files and their names; cached like :func:`weights_fingerprint`'s."""
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(f"{len(file.name)}:{file.name}{_content_id(file)}".encode())
    return digest.hexdigest()[:32]


def tensors_fingerprint(tensors: Iterable[tuple[str, torch.Tensor]]) -> str:
    """A content hash of named tensors, by their bytes."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors, key=itemgetter(0)):
        digest.update(f"{len(name)}:{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        raw = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
        digest.update(_xxhash().xxh3_128_digest(raw.numpy()))
    return digest.hexdigest()[:32]


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """A content hash of the vocabulary, merges and chat template; "none" without a tokenizer."""
    if tokenizer is None:
        return "none"
    backend = getattr(tokenizer, "backend_tokenizer", None)
    body = backend.to_str() if backend is not None else json.dumps(sorted(tokenizer.get_vocab()))
    template = getattr(tokenizer, "chat_template", None) or ""
    return hashlib.sha256(f"{len(body)}:{body}{template}".encode()).hexdigest()[:32]


def _settings_of(config: Any, folder: Path | None) -> dict[str, Any]:
    """The settings in the model's own file. The loaded object also has each library's defaults."""
    file = None if folder is None else folder / "config.json"
    values: dict[str, Any] = (
        json.loads(file.read_text(encoding="utf-8"))
        if file is not None and file.is_file()
        else config.to_dict()
    )
    return values


def _canonical(values: dict[str, Any]) -> str:
    """The configuration without what does not affect K/V (its origin and author)."""
    ignored = {"_name_or_path", "transformers_version", "architectures", "use_cache"}
    kept = {key: value for key, value in values.items() if key not in ignored}
    return json.dumps(kept, sort_keys=True, default=str)


def _content_id(file: Path) -> str:
    real = file.resolve()
    if real.parent.name == "blobs":
        return real.name
    stat = real.stat()
    return _hash_file(str(real), stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=256)
def _hash_file(path: str, size: int, changed_ns: int) -> str:
    digest = _xxhash().xxh3_128(f"{size}".encode())
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    del changed_ns  # only part of the cache key: a changed file is read again
    return str(digest.hexdigest())


def _xxhash() -> Any:
    # Imported here: the GPU benchmarks name their weights and need no hash.
    import xxhash

    return xxhash
