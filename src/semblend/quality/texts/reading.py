"""Questions about real text in LongBench's format, from a file or from the hub.

A file holds one JSON object a line (`input`, `context`, `answers`, `dataset`; or `dialogue` and
`summary`, as SAMSum has them), plain or compressed by xz. `longbench:NAME` is a dataset of
LongBench, fetched by `datasets`. Texts are other people's: nothing of them is written anywhere.
"""

from __future__ import annotations

import json
import lzma
import random
from collections import defaultdict
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from semblend.core.errors import MissingExtraError, SerialisationError
from semblend.quality.items import Ask, Case
from semblend.quality.texts.workloads import instructions

MOST_CHARACTERS = 24_000
"""About 6,000 tokens. Longer contexts are cut before the question."""

FIELDS = ("input", "context", "answers", "dataset")
DIALOGUE_QUESTION = "What do the speakers agree on?"
HUB = "longbench:"
ARCHIVE = "hf://datasets/zai-org/LongBench/data.zip"
"""Where LongBench keeps one JSON Lines file per dataset, in its folder `data`."""


def reading_cases(source: str, *, seed: int, items: int, archive: str = ARCHIVE) -> Iterator[Case]:
    """Make items from two questions about one context: one asked before, one asked now.

    Parameters
    ----------
    source
        A file, or `longbench:NAME`.
    archive
        Where `longbench:` looks. A local copy of LongBench's `data.zip` works too.

    Raises
    ------
    SerialisationError
        If the source cannot be read or has a different format.
    """
    by_context: dict[str, list[dict[str, Any]]] = defaultdict(list)
    name = source.removeprefix(HUB)
    rows = _hub_rows(name, archive) if source.startswith(HUB) else _file_rows(Path(source))
    for row in rows:
        if row["answers"] and row["input"]:
            by_context[row["context"]].append(row)
    if len(by_context) < 5:
        raise SerialisationError(
            f"{source}: {len(by_context)} contexts with a question; at least 5 expected"
        )
    rng = random.Random(f"semblend-reading-{seed}")
    # Contexts with two questions come first. For others, another context's question was read
    # before.
    contexts = sorted(by_context, key=lambda text: (len(by_context[text]) < 2, text))
    paired = sum(len(rows) > 1 for rows in by_context.values())
    order = [*rng.sample(contexts[:paired], paired), *contexts[paired:]]
    for number, context in enumerate(order[:items]):
        before, now = instructions(rng)
        asked, *more = rng.sample(by_context[context], len(by_context[context]))
        read = more[0] if more else by_context[order[number - 1]][0]
        body, donor_body = _bodies(context, [text for text in order if text != context], rng)
        yield Case(
            workload="reading",
            kind=str(asked["dataset"]),
            number=number,
            target=Ask(instruction=now, body=body, question=asked["input"]),
            donors=(Ask(instruction=before, body=donor_body, question=read["input"]),),
            answer=str(asked["answers"][0]),
        )


def _bodies(context: str, others: list[str], rng: random.Random) -> tuple[str, str]:
    """The target's and the donor's text: a long context alone, a short one among others."""
    if len(context) > MOST_CHARACTERS // 4:
        return context[:MOST_CHARACTERS], context[:MOST_CHARACTERS]
    room = (MOST_CHARACTERS - len(context)) // 4
    beside = [text[:room] for text in rng.sample(others, 4)]
    return (
        "\n\n".join([*beside[:2], context, *beside[2:]]),
        "\n\n".join([*beside[2:], context, *beside[:2]]),
    )


def _file_rows(path: Path) -> Iterator[dict[str, Any]]:
    opener = lzma.open if path.suffix == ".xz" else open
    try:
        with opener(path, "rt", encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                try:
                    yield _fields(json.loads(line), f"{path}:{number}")
                except ValueError as error:
                    raise SerialisationError(f"{path}:{number}: not LongBench's form") from error
    except OSError as error:
        raise SerialisationError(f"{path} cannot be read: {error.strerror or error}") from error


def _hub_rows(name: str, archive: str) -> Iterator[dict[str, Any]]:
    """Rows of one LongBench dataset, yielded as they are read."""
    try:
        load = import_module("datasets").load_dataset
    except ImportError as error:
        raise MissingExtraError(
            package="datasets", extra="longbench", purpose="text from LongBench"
        ) from error
    try:
        rows = load(
            "json", data_files=f"zip://data/{name}.jsonl::{archive}", split="train", streaming=True
        )
        for number, row in enumerate(rows):
            yield _fields(row, f"{HUB}{name}[{number}]")
    except SerialisationError:
        raise
    except Exception as error:  # network, hub, archive and parse errors vary
        raise SerialisationError(
            f"{HUB}{name} cannot be read ({type(error).__name__}: {error}). Without a network, "
            "give --data a file of JSON lines in LongBench's form"
        ) from error


def _fields(row: Any, where: str) -> dict[str, Any]:
    try:
        if "dialogue" in row:
            return {
                "input": DIALOGUE_QUESTION,
                "context": row["dialogue"],
                "answers": [row["summary"]],
                "dataset": "samsum",
            }
        return {key: row[key] for key in FIELDS}
    except (KeyError, TypeError) as error:
        raise SerialisationError(f"{where}: not LongBench's form: {error}") from error
