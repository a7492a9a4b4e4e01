"""Hit rate by how similar a prompt is to the nearest one served before.

    python -m benchmarks.suite.similarity --base-url http://localhost:8000 --embedder minilm

A document is served. Prompts are then asked whose documents share all, three quarters, half, a
quarter and nothing with it; with `--conversations`, the prompts of a log in their order.
Similarity is the cosine of embeddings that the older documents speak of. It is reported and
decides nothing: a hit is what the backend confirms, of identical tokens.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.suite import datasets
from benchmarks.suite.endpoint import Endpoint, parser, run
from benchmarks.suite.figures import Figures
from benchmarks.suite.pairs import Pair, add_reuse, add_speedup
from benchmarks.suite.workloads import Messages, prompts_of, read_conversations
from semblend.discovery.embedders import Embedder, make_embedder
from semblend.discovery.windows import embed_text

SHARES = (1.0, 0.75, 0.5, 0.25, 0.0)
BINS = (0.0, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Where bins begin; each ends where the next begins, the last at 1."""


@dataclass(slots=True)
class Nearest:
    """The prompts served so far, and how near a new one is to the nearest of them."""

    embedder: Embedder
    _served: list[Any] = field(default_factory=list)

    def add(self, text: str) -> None:
        """Remember a prompt."""
        self._served.append(embed_text(self.embedder, text).pooled)

    def cosine(self, text: str) -> float | None:
        """Similarity to the nearest; None before the first."""
        if not self._served:
            return None
        found = np.stack(self._served) @ embed_text(self.embedder, text).pooled
        return float(np.clip(found.max(), 0.0, 1.0))


async def main(arguments: list[str]) -> int:
    """Run the benchmark."""
    flags = parser(__doc__ or "")
    datasets.add_flags(flags)
    flags.add_argument("--conversations", type=Path, help="file of conversations")
    flags.add_argument("--embedder", default="jaccard", help="jaccard, static, minilm, …")
    flags.add_argument("--embedder-model", default="", help="folder or hub name of its model")
    chosen = flags.parse_args(arguments)
    embedder = make_embedder(chosen.embedder, chosen.embedder_model)
    endpoint = await Endpoint.open(chosen)
    try:
        data = str(chosen.conversations or datasets.said(chosen))
        context = {**endpoint.context(data), "embedder": embedder.identity}
        figures = Figures(benchmark="similarity", context=context)
        if chosen.conversations:
            dialogues = itertools.islice(read_conversations(chosen.conversations), chosen.samples)
            found = await _log(endpoint, embedder, dialogues)
            add_bins(figures, "conversations", found)
        else:
            for name, each in datasets.cases(chosen, endpoint.fitting(chosen.lengths)):
                add_bins(figures, name, await _mixed(endpoint, embedder, each))
    finally:
        await endpoint.close()
    return figures.show(as_json=chosen.json, output=chosen.output)


def bin_of(cosine: float | None) -> str:
    """The name of a cosine's bin."""
    if cosine is None:
        return "nothing before"
    low = max(start for start in BINS if cosine >= start)
    high = next((start for start in BINS if start > low), 1.0)
    return f"cosine {low:.2f} to {high:.2f}"


def add_bins(figures: Figures, name: str, found: Sequence[tuple[float | None, Pair]]) -> None:
    """Hit rate, shares and speed-up of every bin that has a request, the nearest first."""
    binned: dict[str, list[Pair]] = {}
    for cosine, pair in sorted(found, key=lambda each: -(each[0] if each[0] is not None else -1)):
        binned.setdefault(f"{name}, {bin_of(cosine)}", []).append(pair)
    for case, pairs in binned.items():
        add_reuse(figures, case, pairs)
        add_speedup(figures, case, "overall_speedup", pairs)


async def _mixed(
    endpoint: Endpoint, embedder: Embedder, found: list[tuple[Any, str]]
) -> list[tuple[float | None, Pair]]:
    """Every second document is served; targets mix it with the one that was not.

    Each target has a cache of its own, or it would find the target before it.
    """
    warm = []
    for (record, document), (_, other) in zip(found[::2], found[1::2], strict=False):
        donor, _ = prompts_of(record, document)
        nearest = Nearest(embedder)
        nearest.add(donor)
        for share in SHARES:
            _, target = prompts_of(record, mixed(document, other, share))
            await endpoint.empty()
            salt = endpoint.new_salt("similarity")
            await endpoint.ask(donor, salt=salt, max_tokens=1)
            await endpoint.settle()
            reply = await endpoint.ask(target, salt=salt)
            warm.append((nearest.cosine(target), target, reply))
    return await _paired(endpoint, warm)


async def _log(
    endpoint: Endpoint, embedder: Embedder, dialogues: Any
) -> list[tuple[float | None, Pair]]:
    """Every prompt of a log, in order, in one cache."""
    nearest, salt = Nearest(embedder), endpoint.new_salt("log")
    await endpoint.empty()
    warm: list[tuple[float | None, Messages, Any]] = []
    for messages in dialogues:
        for end in (at + 1 for at, (role, _) in enumerate(messages) if role == "user"):
            text = "\n\n".join(said for _, said in messages[:end])
            cosine = nearest.cosine(text)
            reply = await endpoint.ask(salt=salt, messages=messages[:end])
            warm.append((cosine, messages[:end], reply))
            nearest.add(text)
            await endpoint.settle()
    return await _paired(endpoint, warm)


async def _paired(endpoint: Endpoint, warm: Sequence[Any]) -> list[tuple[float | None, Pair]]:
    pairs = []
    for cosine, prompt, served in warm:
        await endpoint.empty()
        salt = endpoint.new_salt("cold")
        cold = (
            await endpoint.ask(prompt, salt=salt)
            if isinstance(prompt, str)
            else await endpoint.ask(salt=salt, messages=prompt)
        )
        pairs.append((cosine, Pair(cold=cold, warm=served)))
    return pairs


def mixed(document: str, other: str, share: float) -> str:
    """The first `share` of a document, then as much of another as is missing."""
    kept = int(len(document) * share)
    return document[:kept] + other[: len(document) - kept]


if __name__ == "__main__":
    sys.exit(run(main(sys.argv[1:])))
