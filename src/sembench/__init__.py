"""SemBench measures reuse of K/V by any semantic cache, and cannot be talked into a figure.

Four questions that are usually conflated are answered apart: did an exact cache
already cover the request; did a planner find reusable spans; did the backend
really materialise them; did time and quality hold while negative controls
stayed cold.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def _installed_version() -> str:
    try:
        return version("semblend")
    except PackageNotFoundError:
        # A source tree on sys.path without an installation: say so, never guess a number.
        return "0+unknown"


__version__ = _installed_version()
