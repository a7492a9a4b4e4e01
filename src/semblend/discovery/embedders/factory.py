"""Embedders by name, with a fallback if one is not available."""

from __future__ import annotations

import logging
from collections.abc import Callable

from semblend.core.errors import EmbedderError, MissingExtraError, SettingsError
from semblend.discovery.embedders.base import Embedder
from semblend.discovery.embedders.jaccard import JaccardEmbedder
from semblend.discovery.embedders.minilm import load_minilm
from semblend.discovery.embedders.none import NoneEmbedder
from semblend.discovery.embedders.onnx_gpu import OnnxGpuEmbedder
from semblend.discovery.embedders.static import StaticEmbedder

logger = logging.getLogger("semblend.embedders")

EMBEDDERS: dict[str, Callable[[str], Embedder]] = {
    "minilm": load_minilm,
    "static": lambda _model: StaticEmbedder(),
    "jaccard": lambda _model: JaccardEmbedder(),
    "onnx_gpu": OnnxGpuEmbedder,
    "none": lambda _model: NoneEmbedder(),
}
"""How to make each kind from a model's folder or hub name. Only some let you choose a model."""


def make_embedder(kind: str, model: str = "") -> Embedder:
    """Make the embedder of a kind (a value of SEMBLEND_EMBEDDER).

    Raises
    ------
    SettingsError
        If there is no such kind.
    MissingExtraError
        If a required package is missing. The message names the extra.
    EmbedderError
        If its model or device is not available.
    """
    if kind not in EMBEDDERS:
        raise SettingsError(f"embedder {kind!r}: expected one of {', '.join(EMBEDDERS)}")
    return EMBEDDERS[kind](model)


def embedder_or_fallback(kind: str, model: str = "") -> Embedder:
    """Make the embedder of a kind, or jaccard with a warning that says why.

    A server starts without an optional package. An unknown kind is still an error, because it is a
    mistake in the settings.
    """
    try:
        return make_embedder(kind, model)
    except (MissingExtraError, EmbedderError) as error:
        logger.warning("embedder %s is not available, using jaccard instead: %s", kind, error)
        return JaccardEmbedder()
