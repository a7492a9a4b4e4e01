"""Sentence models as ONNX graphs through onnxruntime, without torch or transformers.

A model is a folder (or hub repository) with `onnx/model.onnx` or `model.onnx`, and
`tokenizer.json`. The graph maps word-piece ids to token vectors, whose mean over the text's tokens
is the text's vector.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from semblend.core.errors import EmbedderError, MissingExtraError
from semblend.discovery.embedders.base import Embedder, Units, Vectors, normalised
from semblend.discovery.embedders.model_files import find_file, find_model, model_name
from semblend.discovery.embedders.word_pieces import SPECIAL_TOKENS, WordPieces

ONNX_NAMES = ("onnx/model.onnx", "model.onnx")
CPU = "CPUExecutionProvider"
_DEFAULT_MAX_TOKENS = 256
_BATCH = 16

Ids = npt.NDArray[np.int64]


class OnnxEmbedder(Embedder):
    """An ONNX sentence model on one execution provider."""

    name = "minilm"
    extra = "embedder"
    provider = CPU
    max_windows = 128

    def __init__(self, model: str = "") -> None:
        purpose = f"the {self.name} embedder (ONNX)"
        runtime = _onnxruntime(purpose, self.extra)
        self._require_provider(runtime)
        graph = _find_graph(model, purpose, self.extra)
        tokenizer = find_file(model, ("tokenizer.json",), purpose=purpose, extra=self.extra)
        self._pieces = WordPieces.from_file(tokenizer, extra=self.extra)
        self._session = self._open(runtime, graph)
        self._inputs = {node.name for node in self._session.get_inputs()}
        self.model = model_name(find_model(model))
        self.window_tokens = _max_tokens(tokenizer.parent) - SPECIAL_TOKENS
        self.dimension = len(self.embed(["dimension"])[0])

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Vectors of the texts, shape [n, dimension]. Texts of similar length run together."""
        if not texts:
            return np.empty((0, self.dimension), dtype=np.float32)
        ids = self._pieces.ids(list(texts))
        order = sorted(range(len(ids)), key=lambda index: len(ids[index]))
        batches = [order[first : first + _BATCH] for first in range(0, len(order), _BATCH)]
        rows = np.concatenate([self._run([ids[i] for i in batch]) for batch in batches])
        restored = np.empty_like(rows)
        restored[order] = rows
        return normalised(restored)

    def units(self, text: str) -> Units:
        """The model's own words."""
        return self._pieces.units(text)

    def _run(self, sequences: list[list[int]]) -> Vectors:
        """Mean token vectors of a batch, shape [n, dimension]."""
        limit = self.window_tokens + SPECIAL_TOKENS
        ids, mask = _padded([_fitted(sequence, limit) for sequence in sequences])
        feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        outputs = self._session.run(None, {n: v for n, v in feeds.items() if n in self._inputs})
        tokens = np.asarray(outputs[0], dtype=np.float32)  # [n, tokens, dimension]
        weights = mask[:, :, None].astype(np.float32)
        pooled: Vectors = (tokens * weights).sum(axis=1) / weights.sum(axis=1)
        return pooled

    def _require_provider(self, runtime: Any) -> None:
        """Fail if onnxruntime was built without the provider."""
        if self.provider not in runtime.get_available_providers():
            raise EmbedderError(
                f"{self.name}: this onnxruntime has no {self.provider}, only "
                f"{', '.join(runtime.get_available_providers())}"
            )

    def _open(self, runtime: Any, graph: Path) -> Any:
        options = runtime.SessionOptions()
        options.intra_op_num_threads = 1  # one background thread: the cores belong to the engine
        try:
            session = runtime.InferenceSession(str(graph), options, providers=[self.provider])
        except Exception as error:  # onnxruntime's exceptions have no public base class
            raise EmbedderError(f"{graph}: onnxruntime cannot run it ({error})") from error
        # onnxruntime drops a provider it cannot start and continues on the CPU.
        if self.provider not in session.get_providers():
            raise EmbedderError(
                f"{self.name}: {self.provider} did not start; onnxruntime fell back to "
                f"{', '.join(session.get_providers())}, which is refused"
            )
        session.disable_fallback()
        return session


def _onnxruntime(purpose: str, extra: str) -> Any:
    try:
        return importlib.import_module("onnxruntime")
    except ImportError as error:
        package = "onnxruntime-gpu" if extra == "onnx-gpu" else "onnxruntime"
        raise MissingExtraError(package=package, extra=extra, purpose=purpose) from error


def _find_graph(model: str, purpose: str, extra: str) -> Path:
    try:
        return find_file(model, ONNX_NAMES, purpose=purpose, extra=extra)
    except EmbedderError as error:
        raise EmbedderError(
            f"{error}. To make one, run python -m semblend.discovery.embedders.onnx_export FOLDER, "
            f"then set embedder_model to that folder"
        ) from error


def _max_tokens(folder: Path) -> int:
    path = folder / "sentence_bert_config.json"
    if not path.is_file():
        return _DEFAULT_MAX_TOKENS
    try:
        return int(json.loads(path.read_text(encoding="utf-8"))["max_seq_length"])
    except (ValueError, KeyError, TypeError) as error:
        raise EmbedderError(f"{path}: no usable max_seq_length ({error})") from error


def _fitted(sequence: list[int], limit: int) -> list[int]:
    """At most `limit` ids, keeping the closing special token. Windows never need this."""
    return sequence if len(sequence) <= limit else [*sequence[: limit - 1], sequence[-1]]


def _padded(sequences: list[list[int]]) -> tuple[Ids, Ids]:
    """Ids and mask, both [n, longest]."""
    longest = max(len(sequence) for sequence in sequences)
    ids = np.zeros((len(sequences), longest), dtype=np.int64)
    mask = np.zeros_like(ids)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = sequence
        mask[row, : len(sequence)] = 1
    return ids, mask
