"""Promise: docs/engine.md says of every file of the engine what it is for, and of no other."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_table_of_files_is_the_folder() -> None:
    text = (ROOT / "docs" / "engine.md").read_text(encoding="utf-8")
    table = text.split("## What is where")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    named = [name for row in rows for name in re.findall(r"`([a-z_]+\.py)`", row)]
    files = {path.name for path in (ROOT / "src/semblend/engine").glob("*.py")} - {"__init__.py"}
    assert sorted(named) == sorted(files)
