"""Helpers of the live tests: a small manifest, a mock engine, a command run as a user would."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from sembench.cli.main import app
from sembench.manifests.building import BuildReport, build_items, source_for
from sembench.manifests.files import write_manifest
from sembench.manifests.spec import BuildSpec
from sembench.mock_engine import MockSettings
from sembench.mock_engine.server import RunningMockEngine
from sembench.model import ManifestItem

TRANSFORMS = (
    "instruction_variant",
    "multi_donor_composite",
    "entity_swap_control",
    "fact_divergent_paraphrase",
    "negative_control",
)


def sembench(*arguments: object) -> Result:
    """Run a command in this process; a typed error becomes its exit code, as for a user."""
    from sembench.errors import SemBenchError

    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if isinstance(done.exception, SemBenchError):
        done.exit_code = done.exception.exit_code
    elif done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def sembench_process(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "sembench", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        **options,
    )


@contextlib.contextmanager
def mock_engine(**settings: Any) -> Iterator[str]:
    """The URL of a mock engine for the length of a block."""
    with RunningMockEngine(MockSettings(**settings)) as running:
        yield running.url


def short_manifest(folder: Path, *, records: int = 2) -> Path:
    """A manifest of the fixture's shortest documents under the transforms that matter here."""
    path = folder / "short.jsonl"
    write_manifest(path, [item for group in _shortest()[:records] for item in group])
    return path


@functools.cache
def _shortest() -> list[list[ManifestItem]]:
    """The fixture's items by document, the shortest document first; built once a process."""
    spec = BuildSpec(name="short", profile="fixture", transforms=TRANSFORMS)
    by_source: dict[str, list[ManifestItem]] = {}
    for item in build_items(spec, source_for(spec), BuildReport()):
        by_source.setdefault(item.source_id, []).append(item)
    return sorted(
        by_source.values(), key=lambda group: sum(len(item.recipient_prompt) for item in group)
    )


def load_json(path: Path) -> dict[str, Any]:
    data = json.loads(path.read_text(encoding="utf-8"))
    assert isinstance(data, dict)
    return data
