"""One target under atheris: inputs that reach new code are kept and changed further.

    python -m benchmarks.fuzz.coverage_guided event -runs=50000 seeds/

libFuzzer takes the process over, so every target has a process of its own. It ends with
status 0 after `-runs`, and with 77 and a file that reproduces it at the first finding.
"""

from __future__ import annotations

import logging
import sys
import warnings

import atheris


def main() -> None:
    """Fuzz the target named first; the rest is libFuzzer's."""
    name = sys.argv.pop(1)
    with atheris.instrument_imports(include=["semblend", "sembench"]):
        from benchmarks.fuzz.targets import TARGETS
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")  # the compiler's opinions on what a policy's text holds
    run = TARGETS[name].run
    atheris.Setup(sys.argv, lambda data: run(bytes(data)))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
