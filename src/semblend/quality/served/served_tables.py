"""A model's table of depth drift, measured through the engine that will serve it."""

from __future__ import annotations

from pathlib import Path

import torch

from semblend.core.errors import DonorError
from semblend.core.tokens import TokenArray
from semblend.quality.drift import drift_of_texts
from semblend.quality.seam import MeasuredFacts
from semblend.quality.served.asking import ServedRequest
from semblend.quality.served.vllm_offline import VllmOffline


def table_path(folder: Path, *, fingerprint: str, dtype: str) -> Path:
    """Named as engines look for it where no certificate stands beside it."""
    return folder / f"measured-{fingerprint}-{dtype}.depth.safetensors"


def table_of(folder: Path, facts: MeasuredFacts) -> Path:
    """Where the table of one engine's model lies."""
    return table_path(folder, fingerprint=facts.fingerprint, dtype=facts.dtype)


def measure_table(engine: VllmOffline, folder: Path, *, length: int) -> Path:
    """Have the engine read texts cold and keep them; their K/V comes from its workers.

    Raises
    ------
    DonorError
        If the engine does not keep what it was told to.
    """

    def read(tokens: TokenArray) -> torch.Tensor:
        question = ServedRequest(tokens=tokens, salt=f"drift/{len(seen)}", most=1, capture=True)
        seen.append(len(tokens))
        engine.ask([question])
        engine.settle()
        kv = engine.kv_of_donor(tokens)
        if kv is None:
            raise DonorError("depth drift: the engine did not keep a prompt that it was told to")
        return kv

    seen: list[int] = []
    drift = drift_of_texts(read, engine.tokenizer, length=length)
    path = table_of(folder, engine.facts)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(drift.to_bytes())
    return path
