"""How users install what is missing. The name on the package index is another project's."""

from __future__ import annotations

from semblend import __version__


def install_command(extra: str) -> str:
    """Commands that bring an extra to someone who has a clone, or only the wheel."""
    wheel = f"semblend-{__version__}-py3-none-any.whl"
    return f"in a clone: pip install '.[{extra}]'; from the wheel: pip install '{wheel}[{extra}]'"
