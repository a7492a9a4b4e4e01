"""Older name of `launcher`; its `main` is `run` there."""

from __future__ import annotations

from semblend.core.moved import moved
from semblend.integration.sglang.launcher import run as main

__all__ = ["main"]

# Written out: as a script (`python -m`) its own name is another.
_HERE = "semblend.integration.sglang.launch_semblend_sglang"
__getattr__ = moved(_HERE, "semblend.integration.sglang.launcher")

if __name__ == "__main__":
    main()
