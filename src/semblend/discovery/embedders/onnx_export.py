"""Make an ONNX folder from MiniLM's weights, for `onnx_gpu` and for `minilm` without torch.

    python -m semblend.discovery.embedders.onnx_export FOLDER [MODEL]

Exporting needs torch, transformers, onnx and onnxscript; using the folder needs none of them. MODEL
defaults to the installed package's.
"""

from __future__ import annotations

import importlib
import logging
import shutil
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from semblend.core.errors import EmbedderError, MissingExtraError
from semblend.discovery.embedders.model_files import find_model, quiet_loading

_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_COPIED = ("tokenizer.json", "sentence_bert_config.json", "config.json")
_MAX_TOKENS = 512


def export_onnx(folder: Path, model: str = "") -> Path:
    """Write `folder`/model.onnx and the other files an embedder reads.

    Raises
    ------
    MissingExtraError
        If a package needed for the export is missing.
    EmbedderError
        If `model` is not in a folder on this machine.
    """
    source = find_model(model)
    if not isinstance(source, Path):
        raise EmbedderError(f"exporting {source}: give the folder of a downloaded model")
    for package in ("onnx", "onnxscript", "transformers", "torch"):
        _need(package)
    folder.mkdir(parents=True, exist_ok=True)
    _export(source, folder / "model.onnx")
    for name in _COPIED:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)
    return folder


def _export(source: Path, destination: Path) -> None:
    torch, transformers = _need("torch"), _need("transformers")
    with quiet_loading():
        bert = transformers.AutoModel.from_pretrained(
            str(source), attn_implementation="eager", local_files_only=True, use_safetensors=True
        ).eval()
    bert.config.return_dict = False  # a graph returns tensors, token vectors first
    # Three separate tensors: the exporter would take one tensor used three times for one input.
    ids = torch.arange(1000, 1016, dtype=torch.int64).reshape(2, 8)
    example = dict(zip(_INPUTS, (ids, torch.ones_like(ids), torch.zeros_like(ids)), strict=True))
    shape = {0: torch.export.Dim("texts"), 1: torch.export.Dim("tokens", max=_MAX_TOKENS)}
    with _quiet():
        torch.onnx.export(
            bert,
            kwargs=example,
            f=str(destination),
            input_names=list(_INPUTS),
            output_names=["token_vectors", "unused_pooler"],
            dynamic_shapes=dict.fromkeys(_INPUTS, shape),
            dynamo=True,
            external_data=False,
            verbose=False,
        )


def _need(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise MissingExtraError(
            package=package, extra="dev", purpose="exporting a model to ONNX"
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter's irrelevant remarks about packages and arguments."""
    exporter = logging.getLogger("torch.onnx")
    level = exporter.level
    exporter.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        exporter.setLevel(level)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    export_onnx(Path(sys.argv[1]), *sys.argv[2:])
