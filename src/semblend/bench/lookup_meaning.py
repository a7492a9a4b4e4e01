"""The semantic part of `semblend bench lookup`: what embedders see and what search misses."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from semblend.bench.benchmark_report import BenchmarkReport
from semblend.bench.lookup_workloads import Writer
from semblend.core.errors import EmbedderError, MissingExtraError
from semblend.core.settings import EmbedderKind
from semblend.discovery.embedders import Embedder, make_embedder
from semblend.discovery.vector_index import VectorIndex
from semblend.discovery.windows import embed_text
from semblend.terminal.progress import Advance, unseen

DIMENSION = 384
QUERIES = 200
NEAR = 0.7
"""Cosine between a query and the vector it was made from: a paraphrase, not a copy."""
PROMPT_CHARACTERS = 60_000
EMBEDDERS = {
    EmbedderKind.JACCARD: 1_000,
    EmbedderKind.STATIC: 1_000,
    EmbedderKind.MINILM: 100_000,
}
"""Embedders to measure, and their cost in added vectors, roughly: for the time left."""


def meaning_work(vectors: int) -> int:
    """Cost of this part, in added vectors."""
    return sum(EMBEDDERS.values()) + vectors


def measure_windows(report: BenchmarkReport, seed: int, advance: Advance = unseen) -> None:
    """Check that a long prompt is embedded in full: all characters, and its last words."""
    writer = Writer(seed)
    words = [f"word{number}" for number in writer.words(PROMPT_CHARACTERS // 6)]
    text = " ".join(words)[:PROMPT_CHARACTERS]
    for kind, work in EMBEDDERS.items():
        try:
            embedder = make_embedder(kind)
        except (MissingExtraError, EmbedderError):
            advance(work)
            continue  # not installed, so there is nothing to measure
        case = f"{PROMPT_CHARACTERS} characters, {kind.value}"
        seen = embed_text(embedder, text)
        covered = np.zeros(len(text), dtype=np.bool_)
        for start, end in seen.bounds:
            covered[start:end] = True
        letters = np.array([not character.isspace() for character in text])
        share = float(covered[letters].mean())
        report.add(case, "characters inside windows", share, "share", at_least=1.0)
        report.add(
            case,
            "a changed last sentence is seen",
            _end_seen(embedder, text),
            "share",
            at_least=1.0,
        )
        advance(work)


def _end_seen(embedder: Embedder, text: str) -> float:
    changed = text[:-200] + " entirely different closing words about whales and the moon"
    before, after = embed_text(embedder, text).windows, embed_text(embedder, changed).windows
    return float(not np.allclose(before[-1], after[-1], atol=1e-3))


def measure_recall(
    report: BenchmarkReport, vectors: int, seed: int, advance: Advance = unseen
) -> None:
    """Measure how often search finds the nearest donor, compared with an exact scan."""
    rng = np.random.default_rng(seed)
    held = _clustered(rng, vectors)
    index = VectorIndex(DIMENSION, max_bytes=4 * 2**30)
    for number in range(vectors):
        index.add(str(number), held[number], namespace=b"bench")
        advance(1)
    right = 0
    for number in rng.integers(0, vectors, QUERIES):
        query = _turned(rng, held[number])
        (found,) = index.search(query, 1, namespace=b"bench")
        cosines = held @ query
        # Half precision cannot resolve smaller differences.
        right += bool(cosines[int(found.donor_id)] >= cosines.max() - 1e-3)
    report.add(f"{vectors} vectors", "recall@1", right / QUERIES, "share", at_least=0.99)


def _clustered(rng: np.random.Generator, count: int) -> npt.NDArray[np.float32]:
    """Draw a hundred vectors per topic, with the decaying spectrum of sentence embeddings."""
    spectrum = np.arange(1, DIMENSION + 1) ** -0.5
    topics = rng.standard_normal((max(1, count // 100), DIMENSION)) * spectrum
    rows = topics[rng.integers(0, len(topics), count)]
    rows += 0.8 * rng.standard_normal((count, DIMENSION)) * spectrum
    return _unit(rows)


def _turned(rng: np.random.Generator, row: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    noise = rng.standard_normal(DIMENSION)
    noise -= (noise @ row) * row
    noise /= np.linalg.norm(noise)
    return _unit(NEAR * row + np.sqrt(1 - NEAR**2) * noise)


def _unit(rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    scaled: npt.NDArray[np.float32] = (rows / np.linalg.norm(rows, axis=-1, keepdims=True)).astype(
        np.float32
    )
    return scaled
