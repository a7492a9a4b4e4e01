"""The hub's datasets through the ``datasets`` package, streamed, with errors that help."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

from sembench.errors import MissingExtraError, SourceError


def load_streamed(
    what: str, path: str, config: str | None = None, *, split: str = "train", **options: Any
) -> Any:
    """A streamed dataset.

    Raises
    ------
    SourceError
        If it cannot be had; the message says what to do without a network.
    """
    try:
        load_dataset = import_module("datasets").load_dataset
    except ImportError as error:
        raise MissingExtraError(
            package="datasets", extra="benchmarks", purpose=f"{what} from the hub"
        ) from error
    try:
        return load_dataset(path, config, split=split, streaming=True, **options)
    except Exception as error:  # network, hub, archive and parse errors are many kinds
        raise _unreadable(what, error) from error


def streamed_rows(rows: Any, what: str) -> Iterator[dict[str, Any]]:
    """The rows; a streamed dataset fails where it is read."""
    try:
        yield from rows
    except SourceError:
        raise
    except Exception as error:
        raise _unreadable(what, error) from error


def _unreadable(what: str, error: Exception) -> SourceError:
    return SourceError(
        f"{what} cannot be read from the hub ({type(error).__name__}: {error}). Without a network, "
        f"give --data-dir a file or folder of it"
    )
