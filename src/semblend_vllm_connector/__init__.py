"""The public name of SemBlend's vLLM connector. Re-exports `semblend.integration.vllm` only.

Imports nothing of `semblend` before it has seen that it is this project's: the package index has
another of the same name, and half of each would run together.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path


def _refuse_another_semblend() -> None:
    spec = find_spec("semblend")
    found = None if spec is None or spec.origin is None else Path(spec.origin).parent
    if found is not None and (found / "core" / "distribution.py").is_file():
        return
    try:
        installed = f"semblend {version('semblend')}"
    except PackageNotFoundError:
        installed = "a semblend without metadata"
    raise ImportError(
        f"semblend_vllm_connector refuses to run with {installed} in {found or 'no folder'}: it is "
        "another project of this name. Uninstall it, then install this one; in a clone: "
        "pip install '.[vllm]'"
    )


_refuse_another_semblend()
