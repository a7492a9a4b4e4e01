"""How to install missing extras. On the package index our name belongs to another project."""

from __future__ import annotations

from semblend import __version__


def install_command(extra: str) -> str:
    """Commands that install an extra from a clone or from the wheel."""
    wheel = f"semblend-{__version__}-py3-none-any.whl"
    return f"in a clone: pip install '.[{extra}]'; from the wheel: pip install '{wheel}[{extra}]'"
