"""Frozen manifests: a checksum file that a manifest must match from then on.

``CHECKSUMS.<spec>.json`` holds the manifest's name, sha256, number of items and spec. Our
own addition ``exact`` holds the exact-block figures, so that a changed tokenizer is
noticed as well as a changed file.
"""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

from sembench.errors import ChecksumError, ManifestError
from sembench.ids import file_sha256
from sembench.json_text import parse_json
from sembench.manifests.building import BuildReport, build_items, source_for
from sembench.manifests.figures import exact_figures
from sembench.manifests.files import count_items, write_manifest
from sembench.manifests.spec import BuildSpec
from sembench.progress import track
from sembench.tokenizers import load_tokenizer


def checksums_name(spec: BuildSpec) -> str:
    return f"CHECKSUMS.{spec.name}.json"


def manifest_name(spec: BuildSpec) -> str:
    return f"{spec.name}.jsonl"


def freeze_manifest(
    spec: BuildSpec,
    folder: Path,
    *,
    block_size: int,
    data_dir: Path | None = None,
    replace: bool = False,
) -> dict[str, Any]:
    """Write a spec's checksum file, and its manifest if the folder has none.

    Raises
    ------
    ChecksumError
        If the spec is already frozen with another checksum and `replace` is not set.
    """
    manifest = folder / manifest_name(spec)
    if not manifest.exists():
        items = build_items(spec, source_for(spec, data_dir=data_dir), BuildReport())
        write_manifest(manifest, track(items, description="building"))
    checksums: dict[str, Any] = {
        "manifest": manifest.name,
        "sha256": file_sha256(manifest),
        "workload_items": count_items(manifest),
        "spec": spec.to_dict(),
        "exact": exact_figures(
            manifest, tokenizer=load_tokenizer(spec.tokenizer), block_size=block_size
        ),
    }
    path = folder / checksums_name(spec)
    if path.exists() and not replace:
        before = _read(path)
        if before.get("sha256") != checksums["sha256"]:
            raise ChecksumError(
                f"{path}: already frozen with sha256 {before.get('sha256')}, the manifest now has "
                f"{checksums['sha256']}. Frozen manifests do not change; rename the spec, or "
                f"--replace"
            )
    path.write_text(json.dumps(checksums, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return checksums


def verify_manifest(spec: BuildSpec, folder: Path, *, block_size: int | None) -> list[str]:
    """What differs between a frozen manifest and its checksum file; empty if it matches.

    The exact figures are recounted if `block_size` matches the frozen one or is not given.
    """
    checksums, where = _checksums(spec, folder)
    manifest = folder / str(checksums.get("manifest", manifest_name(spec)))
    if not manifest.exists():
        return [f"{manifest} does not exist"]
    problems = []
    if checksums.get("spec") != spec.to_dict():
        problems.append(f"{where}.spec: the spec {spec.name!r} is no longer what was frozen")
    digest = file_sha256(manifest)
    if digest != checksums.get("sha256"):
        problems.append(f"{where}.sha256: frozen {checksums.get('sha256')}, found {digest}")
    try:
        items = count_items(manifest)
        if items != checksums.get("workload_items"):
            problems.append(
                f"{where}.workload_items: frozen {checksums.get('workload_items')}, found {items}"
            )
        problems += _figure_problems(spec, manifest, checksums.get("exact"), block_size, where)
    except ManifestError as error:
        problems.append(str(error))
    return problems


def check_against_frozen(spec: BuildSpec, manifest: Path) -> str:
    """Describe in one line how a fresh build compares with its checksum file.

    Raises
    ------
    ChecksumError
        If there is a checksum file and the build differs from it.
    """
    try:
        checksums, where = _checksums(spec, manifest.parent)
    except ChecksumError:
        return f"no {checksums_name(spec)} to compare with"
    digest = file_sha256(manifest)
    if digest != checksums.get("sha256"):
        raise ChecksumError(
            f"{manifest}: sha256 {digest} is not the frozen {checksums.get('sha256')} ({where})"
        )
    return f"matches {where}"


def _figure_problems(
    spec: BuildSpec, manifest: Path, frozen: Any, block_size: int | None, where: str
) -> list[str]:
    if not isinstance(frozen, dict) or block_size not in (None, frozen.get("block_size")):
        return []
    found = exact_figures(
        manifest, tokenizer=load_tokenizer(spec.tokenizer), block_size=frozen["block_size"]
    )
    return [
        f"{where}.exact.{name}: frozen {frozen.get(name)}, found {found[name]}"
        for name in ("tokenizer", "total_blocks", "exact_blocks")
        if frozen.get(name) != found[name]
    ]


def _checksums(spec: BuildSpec, folder: Path) -> tuple[dict[str, Any], str]:
    """The checksum file in `folder`, or the one shipped with SemBench."""
    path = folder / checksums_name(spec)
    if path.exists():
        return _read(path), str(path)
    shipped = resources.files("sembench.manifests") / "frozen" / checksums_name(spec)
    if shipped.is_file():
        return parse_json(shipped.read_text(encoding="utf-8")), f"sembench's {path.name}"
    raise ChecksumError(f"{path} does not exist; freeze the spec first")


def _read(path: Path) -> dict[str, Any]:
    try:
        data = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ChecksumError(f"{path}: cannot be read ({error})") from error
    if not isinstance(data, dict):
        raise ChecksumError(f"{path}: expected an object")
    return data
