"""Every error SemBench raises on purpose, in one tree.

The command line turns each into one line on stderr and the exit code below:
1 means "the thing you asked to be checked does not hold", 2 means "what you gave
us cannot be used", 3 means "the engine does not run with the flags required".
"""

from __future__ import annotations

from typing import ClassVar


class SemBenchError(Exception):
    """Base of every error SemBench raises on purpose."""

    exit_code: ClassVar[int] = 2


class ManifestError(SemBenchError, ValueError):
    """A manifest is not what it claims to be; the message names file, line and field."""


class ChecksumError(SemBenchError):
    """A frozen manifest differs from what was frozen."""

    exit_code = 1


class TransformError(SemBenchError, ValueError):
    """A source record cannot be given the shape a transform promises; builds skip and count it."""


class SourceError(SemBenchError, ValueError):
    """A data source (profile, dataset, folder) cannot be read; the message says what would be."""


class PlannerError(SemBenchError, ValueError):
    """A planner cannot be loaded, or proposed spans that are not what it claims."""


class TokenizerError(SemBenchError, ValueError):
    """A tokenizer cannot be loaded, or returned something other than token ids."""


class ResultError(SemBenchError, ValueError):
    """A result file is not what it claims to be; the message names file and field."""


class UsageError(SemBenchError, ValueError):
    """A flag has a value it cannot take; the message names it and what would be right."""


class EndpointError(SemBenchError):
    """An endpoint cannot be reached, or answers something other than its protocol."""


class EngineFlagsError(SemBenchError):
    """The engine does not run with the flags the benchmark requires."""

    exit_code = 3


class MissingExtraError(SemBenchError, ImportError):
    """An optional dependency is needed; the message names the extra that brings it."""

    def __init__(self, *, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package '{package}', which is not installed. "
            f"To install it, in a clone: pip install '.[{extra}]'"
        )
        self.package = package
        self.extra = extra
