"""The older project of our name, as far as an installation shows it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

THEIR_FILES = ("semblend/__init__.py", "semblend/integration/vllm/connector_v1.py")


def state_distribution(
    site: Path, version: str, files: Iterable[str] = THEIR_FILES, *, direct_url: str = ""
) -> Path:
    """Metadata of a distribution called semblend that says it installed these files."""
    folder = site / f"semblend-{version}.dist-info"
    folder.mkdir(parents=True)
    text = f"Metadata-Version: 2.1\nName: semblend\nVersion: {version}\n"
    (folder / "METADATA").write_text(text, encoding="utf-8")
    (folder / "RECORD").write_text("".join(f"{file},,\n" for file in files), encoding="utf-8")
    if direct_url:
        (folder / "direct_url.json").write_text(direct_url, encoding="utf-8")
    return folder


def install_other_project(site: Path) -> Path:
    """Their distribution, files and all."""
    for file in THEIR_FILES:
        path = site / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("SemBlendConnectorV1 = object\n", encoding="utf-8")
    return state_distribution(site, "0.3.25")
