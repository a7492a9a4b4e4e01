"""Documents of a dataset at the lengths asked for: cut where long, put together where short."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sembench.profiles import SourceRecord, load_profile
from sembench.profiles.published import PUBLISHED

LENGTHS = (4096, 8192, 16384, 32768)
"""Prompt lengths in tokens that tables have unless others are asked for."""
AS_THEY_ARE = 0
CHARACTERS_PER_TOKEN = 4.0
"""Of English text, about; figures state the backend's own count."""
FILLERS = 1024
"""Records of a published dataset that are read beside those asked about, to fill prompts with."""
_ENOUGH = 0.75
"""A dataset that fills less than this share of a length does not reach it."""


def add_flags(flags: argparse.ArgumentParser) -> None:
    """The flags that choose data and lengths."""
    flags.add_argument("--data", type=Path, help="file or folder of the data")
    flags.add_argument(
        "--profile",
        choices=("longbench-v1", "published"),
        help="what the data is; left out, what --datasets names",
    )
    flags.add_argument("--datasets", nargs="+", default=[], help="of the data; left out, all")
    flags.add_argument("--hf-revision", help="read published datasets from the hub, at this one")
    add_lengths(flags)


def add_lengths(flags: argparse.ArgumentParser) -> None:
    """The flag that chooses lengths."""
    flags.add_argument(
        "--lengths",
        type=int,
        nargs="+",
        default=list(LENGTHS),
        help="tokens of a document; 0 takes documents as they are",
    )


def grouped(flags: Any) -> dict[str, list[SourceRecord]]:
    """All records by dataset; generated ones where no data is named."""
    if flags.data is None and flags.hf_revision is None and not flags.profile:
        source = load_profile("fixture", seed=flags.seed)
    else:
        named = flags.datasets and all(name in PUBLISHED for name in flags.datasets)
        source = load_profile(
            flags.profile or ("published" if named else "longbench-v1"),
            datasets=tuple(flags.datasets),
            data_dir=flags.data,
            hf_revision=flags.hf_revision,
            records_per_dataset=flags.samples + FILLERS,
            seed=flags.seed,
        )
    found: dict[str, list[SourceRecord]] = {}
    for record in source.records():
        found.setdefault(record.dataset, []).append(record)
    return found


def documents(
    records: Sequence[SourceRecord], *, length: int, samples: int
) -> list[tuple[SourceRecord, str]]:
    """The first records, each with a text of about `length` tokens that begins with its own.

    Short documents are followed by others of their dataset, none of them twice. Empty where the
    dataset has not so much text.
    """
    wanted = int(length * CHARACTERS_PER_TOKEN)
    if length == AS_THEY_ARE:
        return [(record, record.context) for record in records[:samples]]
    texts = list(dict.fromkeys(record.context for record in records))
    found: list[tuple[SourceRecord, str]] = []
    for record in records[:samples]:
        at = texts.index(record.context)
        parts: list[str] = []
        for text in itertools.islice(itertools.cycle(texts), at, at + len(texts)):
            parts.append(text)
            if sum(map(len, parts)) >= wanted:
                break
        body = "\n\n".join(parts)[:wanted]
        if len(body) >= _ENOUGH * wanted:
            found.append((record, body))
    return found


def cases(
    flags: Any, lengths: Sequence[int]
) -> Iterator[tuple[str, list[tuple[SourceRecord, str]]]]:
    """Every dataset at every length it reaches, by name; the others are named on stderr."""
    for name, records in sorted(grouped(flags).items()):
        for length in lengths:
            found = documents(records, length=length, samples=flags.samples)
            if found:
                yield (name if length == AS_THEY_ARE else f"{name}, {length} tokens"), found
            else:
                print(f"{name} has not enough text for {length} tokens", file=sys.stderr)


def said(flags: Any) -> str:
    """Where the data comes from, for the figures."""
    if flags.data is not None:
        return str(flags.data)
    return f"the hub at {flags.hf_revision}" if flags.hf_revision else "built-in fixture"
