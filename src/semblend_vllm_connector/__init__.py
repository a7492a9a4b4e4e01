"""The public name of SemBlend's vLLM connector. Only re-exports `semblend.integration.vllm`.

Imports nothing from `semblend` before checking that it is this project's: the package index
has another one of the same name, and a mix of both would run.
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
