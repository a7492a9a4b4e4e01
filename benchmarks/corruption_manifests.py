"""SemBench's manifests as targets: frozen ones are verified, compressed ones report damage."""

from __future__ import annotations

from pathlib import Path

from benchmarks.corruption_targets import ReadResult, Target
from sembench.errors import SemBenchError
from sembench.manifests.building import BuildReport, build_items, source_for
from sembench.manifests.files import read_manifest, write_manifest
from sembench.manifests.freezing import freeze_manifest, manifest_name, verify_manifest
from sembench.manifests.spec import BuildSpec

SPEC = BuildSpec(
    name="small",
    profile="synthetic-v1",
    datasets=("synthetic_harbour",),
    max_items_per_dataset=1,
    transforms=("exact_repeat", "rag_reorder"),
)


class FrozenManifest(Target):
    """A frozen manifest with its checksums."""

    name = "frozen manifest"

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "frozen"
        self._folder.mkdir()
        freeze_manifest(SPEC, self._folder, block_size=16)
        self._path = self._folder / manifest_name(SPEC)
        self._good = self._path.read_bytes()

    def _fresh(self) -> bytes:
        return self._good

    def _read(self, bad: bytes) -> ReadResult:
        self._path.write_bytes(bad)
        # Figures are not recounted: the checksum must be enough.
        problems = verify_manifest(SPEC, self._folder, block_size=-1)
        return ReadResult.DETECTED if problems else ReadResult.WRONG


class CompressedManifest(Target):
    """A compressed manifest without checksums: its format detects damage, or nothing changed."""

    name = "compressed manifest"
    weight = 2

    def __init__(self, folder: Path) -> None:
        items = list(build_items(SPEC, source_for(SPEC), BuildReport()))
        self._items = items
        self._paths = [folder / "manifest.jsonl.gz", folder / "manifest.jsonl.xz"]
        for path in self._paths:
            write_manifest(path, items)
        self._good = {path: path.read_bytes() for path in self._paths}

    def _fresh(self) -> bytes:
        self._paths.reverse()
        return self._good[self._paths[0]]

    def _read(self, bad: bytes) -> ReadResult:
        self._paths[0].write_bytes(bad)
        try:
            back = list(read_manifest(self._paths[0]))
        except SemBenchError:
            return ReadResult.DETECTED
        return ReadResult.SAME if back == self._items else ReadResult.WRONG
