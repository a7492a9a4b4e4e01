"""The chart, rendered by helm, or by Go's templates with the functions helm gives them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from tests.fleet.support import need

CHART = Path(__file__).resolve().parents[2] / "deploy" / "helm" / "semblend"
RENDERER = Path(__file__).parent / "chart_renderer" / "main.go"
GO_LIBRARIES = Path("/usr/share/gocode")


def renderer(folder: Path) -> Callable[[dict[str, Any]], list[dict[str, Any]]]:
    """A function from values to the chart's documents; raises ValueError where it refuses."""
    helm, go = shutil.which("helm"), shutil.which("go")
    if helm is None:
        if go is None or not (GO_LIBRARIES / "src/github.com/Masterminds/sprig").exists():
            need(False, "helm, or go with sprig and yaml")
        env = {**os.environ, "GO111MODULE": "off", "GOPATH": str(GO_LIBRARIES), "GOFLAGS": ""}
        env.setdefault("GOCACHE", str(folder / "cache"))
        subprocess.run([str(go), "build", "-o", folder / "render", RENDERER], env=env, check=True)

    def documents(values: dict[str, Any]) -> list[dict[str, Any]]:
        given = folder / "values.json"
        given.write_text(json.dumps(values), encoding="utf-8")
        command = (
            [folder / "render", CHART, given]
            if helm is None
            else [helm, "template", "fleet", CHART, "--values", given]
        )
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise ValueError(done.stderr)
        return [part for part in yaml.safe_load_all(done.stdout) if part]

    return documents
