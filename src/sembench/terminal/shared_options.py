"""Options that several commands share, so that a flag means the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Manifest = Annotated[Path, typer.Option("--manifest", help="Manifest to read (.jsonl, .xz, .gz).")]
BlockSize = Annotated[
    int, typer.Option("--block-size", min=1, help="Tokens per block of the engine's cache.")
]
TokenizerName = Annotated[
    str | None,
    typer.Option(
        "--tokenizer",
        help=(
            "Hugging Face name, folder or tokenizer.json; "
            "default: the built-in stable-regex-sha256."
        ),
    ),
]
MaxItems = Annotated[
    int | None, typer.Option("--max-items", min=1, help="Stop after this many items.")
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        help=(
            "File or folder to read instead of the hub: LongBench-format JSONL (plain, .xz or "
            ".gz), or files named after published datasets."
        ),
    ),
]
ManifestsDir = Annotated[
    Path,
    typer.Option("--manifests-dir", help="Folder with manifests and their CHECKSUMS files."),
]
Spec = Annotated[
    str,
    typer.Option("--spec", help="Name of a built-in spec, or a .json file with a spec's fields."),
]
