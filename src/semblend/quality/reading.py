"""Questions about real text, from a file in LongBench's field names.

Such a file holds one JSON object a line (`input`, `context`, `answers`, `dataset`, `_id`),
plain or compressed by xz. Texts are other people's: nothing of them is written anywhere.
"""

from __future__ import annotations

import json
import lzma
import random
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from semblend.core.errors import SerialisationError
from semblend.quality.items import Ask, Case
from semblend.quality.workloads import instructions

MOST_CHARACTERS = 24_000
"""About 6,000 tokens; longer contexts are cut, at the front of the question."""


def reading_cases(path: Path, *, seed: int, items: int) -> Iterator[Case]:
    """Pairs of questions about one context: one was asked before, one is asked now.

    Raises
    ------
    SerialisationError
        If the file is not of that form.
    """
    by_context: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in _rows(path):
        if row["answers"] and row["input"]:
            by_context[row["context"]].append(row)
    rng = random.Random(f"semblend-reading-{seed}")
    contexts = sorted(context for context, rows in by_context.items() if len(rows) > 1)
    rng.shuffle(contexts)
    for number, context in enumerate(contexts[:items]):
        before, now = instructions(rng)
        read, asked = rng.sample(by_context[context], 2)
        others = rng.sample(contexts, 4)
        body = "\n\n".join([*others[:2], context, *others[2:]])[:MOST_CHARACTERS]
        donor_body = "\n\n".join([*others[2:], context, *others[:2]])[:MOST_CHARACTERS]
        yield Case(
            workload="reading",
            kind=str(asked["dataset"]),
            number=number,
            target=Ask(instruction=now, body=body, question=asked["input"]),
            donors=(Ask(instruction=before, body=donor_body, question=read["input"]),),
            answer=str(asked["answers"][0]),
        )


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    opener = lzma.open if path.suffix == ".xz" else open
    with opener(path, "rt", encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                row = json.loads(line)
                yield {key: row[key] for key in ("input", "context", "answers", "dataset")}
            except (KeyError, TypeError, ValueError) as error:
                raise SerialisationError(f"{path}:{number}: not LongBench's form") from error
