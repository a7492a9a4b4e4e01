"""SemBench measures how much K/V any semantic cache reuses, and counts only confirmed reuse.

It answers four questions separately: did an exact cache already cover the request; did a
planner find reusable spans; did the backend really materialize them; did latency and
quality hold while negative controls stayed cold?
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def _installed_version() -> str:
    try:
        return version("semblend")
    except PackageNotFoundError:
        # A source tree on sys.path without an installation has no version; do not guess one.
        return "0+unknown"


__version__ = _installed_version()
