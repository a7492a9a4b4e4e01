"""Runs one target under atheris, which keeps and mutates inputs that reach new code.

    python -m benchmarks.fuzz.coverage_guided event -runs=50000 seeds/

libFuzzer takes over the process, so every target runs in its own. It exits with status 0 after
`-runs`, and at the first finding with 77 and a file that reproduces it.
"""

from __future__ import annotations

import logging
import sys
import warnings

import atheris


def main() -> None:
    """Fuzz the target named first; libFuzzer reads the other arguments."""
    name = sys.argv.pop(1)
    with atheris.instrument_imports(include=["semblend", "sembench"]):
        from benchmarks.fuzz.targets import TARGETS
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")  # the compiler warns about the text of policies
    run = TARGETS[name].run
    atheris.Setup(sys.argv, lambda data: run(bytes(data)))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
