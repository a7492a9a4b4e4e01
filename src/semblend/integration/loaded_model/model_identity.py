"""What identifies the model an engine has loaded: namespace parts that adapters share."""

from __future__ import annotations

import hashlib
import json
import secrets
from pathlib import Path
from typing import Any

from semblend.core.errors import UnsupportedRotaryError
from semblend.core.namespace import NONE, Namespace

_HEADER_BYTES = 1 << 20
_PROCESS = secrets.token_hex(16)
"""Stands in for an unknown revision; equal to itself within this process only."""


def weights_folder(name: str, revision: str | None = None) -> Path | None:
    """The folder of a local or hub model on disk; nothing is downloaded."""
    folder = Path(name)
    if folder.is_dir():
        return folder
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(name, "config.json", revision=revision)
    except HFValidationError:
        return None
    return Path(found).parent if isinstance(found, str) else None


def content_fingerprint(folder: Path | None, hf_config: Any) -> str | None:
    """The content hash that certificates are named by; None if there are no files to hash."""
    from semblend.kv.fingerprint import weights_fingerprint

    if folder is None or not any(folder.glob("*.safetensors")):
        return None
    return weights_fingerprint(None, hf_config, folder)  # type: ignore[arg-type]


def weights_by_content(name: str, hf_config: Any, revision: str | None = None) -> str:
    """Identify the weights on any machine: all their bytes, if they are files.

    This reads a large model once more at start; files in the hub's cache are already named by
    content.
    """
    fingerprint = content_fingerprint(weights_folder(name, revision), hf_config)
    return f"weights:{fingerprint}" if fingerprint else _revision(hf_config, revision)


def weights_by_files(name: str, hf_config: Any, revision: str | None = None) -> str:
    """Identify the weights on this machine: by a folder's files, a revision, or this process.

    Files are identified by name, size, time and the first megabyte (a safetensors header);
    reading all of a large model would delay the start by minutes.
    """
    folder = Path(name)
    if not folder.is_dir():
        return _revision(hf_config, revision)
    digest = hashlib.sha256()
    for file in sorted(folder.glob("*.safetensors")) + sorted(folder.glob("config.json")):
        stat = file.stat()
        digest.update(f"{file.name}:{stat.st_size}:{stat.st_mtime_ns};".encode())
        with file.open("rb") as opened:
            digest.update(opened.read(_HEADER_BYTES))
    return "files:" + digest.hexdigest()[:32]


def rope_name(text_config: Any) -> str:
    """The full rotary configuration, whether or not its K can be moved."""
    from semblend.kv.rotary_spec import RotarySpec

    try:
        specs = RotarySpec.by_layer_type(text_config)
        return "+".join(f"{name}{spec.fingerprint()}" for name, spec in specs.items())
    except UnsupportedRotaryError:
        # Discovery runs with any model; the configuration distinguishes them.
        stated = getattr(text_config, "rope_parameters", None)
        return "unmovable:" + json.dumps(stated, sort_keys=True, default=str)


def quantization_name(method: str | None, *, stored: Any = None, told: Any = None) -> str:
    """The quantisation of the weights in full: the engine's method and a hash of what decides it.

    Parameters
    ----------
    stored
        What the checkpoint says of its own format.
    told
        What the engine was told beside it. A method alone leaves open which layers it takes.
    """
    if method is None and not stored and not told:
        return NONE
    text = json.dumps([stored, told], sort_keys=True, default=repr)
    return f"{method or 'stored'}:{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def added_quantization(method: str | None, *, stored: Any = None, told: Any = None) -> str:
    """The quantisation that an engine adds to weights as it loads them; "none": it adds none.

    Weights that are stored quantised are known by their files, and so is how they are.
    """
    if told or (method is not None and not stored):
        return quantization_name(method, told=told)
    return NONE


def for_discovery(namespace: Namespace) -> Namespace:
    """The same with unknown parts named after this process: enough to discover, not to share."""
    numeric = {"tensor_parallel", "block_size"}
    named: dict[str, Any] = {
        part: 1 if part in numeric else f"unknown:{_PROCESS}" for part in namespace.unknown_parts
    }
    return namespace.with_parts(**named)


def shown(engine: str, namespace: Namespace) -> str:
    """A namespace's short name in log lines and audit records."""
    parts = (
        namespace.model,
        namespace.tokenizer,
        namespace.block_size,
        namespace.kv_dtype,
        namespace.cache_salt,
        namespace.adapter,
    )
    return f"{engine}:" + hashlib.sha256("|".join(map(str, parts)).encode()).hexdigest()[:16]


def _revision(hf_config: Any, revision: str | None) -> str:
    pinned = getattr(hf_config, "_commit_hash", None) or revision
    return f"revision:{pinned}" if pinned else f"process:{_PROCESS}"
