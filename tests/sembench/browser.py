"""A page as headless Chromium draws it; skips loudly where there is none."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def screenshot(page: Path, *, scheme: str) -> Path:
    """The picture of a page beside it, drawn for ``light`` or ``dark``."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("Chromium is not installed")
    picture = page.with_suffix(".png")
    flags = ["--force-dark-mode"] if scheme == "dark" else []
    subprocess.run(
        [
            *(chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic"),
            *("--no-first-run", "--disable-background-networking", "--disable-component-update"),
            *("--disable-sync", f"--user-data-dir={page.parent / 'profile'}", *flags),
            *("--window-size=1000,900", f"--screenshot={picture}", page.as_uri()),
        ],
        check=True,
        capture_output=True,
        timeout=120,
    )
    return picture
