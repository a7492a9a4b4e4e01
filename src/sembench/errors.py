"""Every error SemBench raises on purpose, in one tree.

The command line turns each into one line on stderr and an exit code: 1 if a check
failed, 2 if the input cannot be used, 3 if the engine does not run with the required
flags.
"""

from __future__ import annotations

from typing import ClassVar


class SemBenchError(Exception):
    """Base class of SemBench's errors."""

    exit_code: ClassVar[int] = 2


class ManifestError(SemBenchError, ValueError):
    """A manifest is malformed; the message names file, line and field."""


class ChecksumError(SemBenchError):
    """A frozen manifest no longer matches its checksums."""

    exit_code = 1


class TransformError(SemBenchError, ValueError):
    """A transform cannot shape a source record; builds skip and count the record."""


class SourceError(SemBenchError, ValueError):
    """A data source (profile, dataset, folder) cannot be read; the message says what to do."""


class PlannerError(SemBenchError, ValueError):
    """A planner cannot be loaded, or its proposal is invalid."""


class TokenizerError(SemBenchError, ValueError):
    """A tokenizer cannot be loaded, or returned something other than token ids."""


class ResultError(SemBenchError, ValueError):
    """A result file is malformed; the message names file and field."""


class UsageError(SemBenchError, ValueError):
    """A flag has an invalid value; the message names the flag and what it expects."""


class EndpointError(SemBenchError):
    """An endpoint cannot be reached, or breaks its protocol."""


class EngineFlagsError(SemBenchError):
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
