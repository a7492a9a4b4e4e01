"""``python -m sembench`` is the ``sembench`` command."""

from __future__ import annotations

from sembench.cli.main import run

if __name__ == "__main__":
    run()
