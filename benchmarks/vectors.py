"""Discovery by meaning, measured: recall and latency of the vector index, embedders, alignment.

    python benchmarks/vectors.py                  # 100,000 vectors of each kind, minutes
    python benchmarks/vectors.py --vectors 30000 --skip embedders
    python benchmarks/vectors.py --json results.json

Times are CPU time; set OMP_NUM_THREADS=1 for single-thread figures. Recall@1 is the share of
queries whose best answer is a nearest vector by brute force, or within 0.001 of its cosine (half
precision cannot tell these apart). Queries are *near* (a stored vector turned to a cosine of 0.7)
or *fresh* (drawn like the stored ones, without a planted neighbor). Vectors are *clustered*
(topics, sub-topics and a decaying spectrum, as in sentence embeddings), *random* (the worst case
for any graph: nothing is near anything) or *text* (static embeddings of real windows, if the
evaluation data is present).
"""

from __future__ import annotations

import argparse
import json
import lzma
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from semblend.core.errors import EmbedderError, MissingExtraError
from semblend.discovery.alignment import align, edit_similarity
from semblend.discovery.embedders import make_embedder
from semblend.discovery.vector_index import EXACT_LIMIT, VectorIndex
from semblend.discovery.windows import cut_windows, embed_text

Rows = npt.NDArray[np.float32]
Row = dict[str, Any]

NAMESPACE = b"benchmark"
NEAR_COSINE = 0.7
TIE = 1e-3
TEXT = Path(__file__).resolve().parents[2] / "shared" / "data" / "evaluation.jsonl.xz"


def row(
    case: str,
    metric: str,
    value: float,
    unit: str,
    *,
    least: float | None = None,
    most: float | None = None,
) -> Row:
    """One measurement; with a target, also whether it is reached."""
    target = f">= {least}" if least is not None else f"<= {most}" if most is not None else None
    ok = None
    if least is not None or most is not None:
        ok = (least is None or value >= least) and (most is None or value <= most)
    return {
        "case": case,
        "metric": metric,
        "value": round(value, 6),
        "unit": unit,
        "target": target,
        "ok": ok,
    }


def unit_rows(rows: npt.NDArray[np.floating]) -> Rows:
    """Rows scaled to length 1."""
    scaled: Rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    return scaled


def turned(rng: np.random.Generator, rows: Rows, cosine: float) -> Rows:
    """Unit rows at exactly `cosine` to the given ones."""
    noise = rng.standard_normal(rows.shape)
    noise -= (noise * rows).sum(axis=1, keepdims=True) * rows
    return unit_rows(cosine * rows + np.sqrt(1 - cosine**2) * unit_rows(noise))


def random_rows(rng: np.random.Generator, count: int, dimension: int) -> Rows:
    """Directions without structure."""
    return unit_rows(rng.standard_normal((count, dimension)))


def clustered_rows(rng: np.random.Generator, count: int, dimension: int) -> Rows:
    """A hundred vectors per topic, with the decaying spectrum of sentence embeddings."""
    spectrum = np.arange(1, dimension + 1) ** -0.5
    topics = rng.standard_normal((count // 100, dimension)) * spectrum
    own = rng.standard_normal((count, dimension)) * spectrum
    return unit_rows(topics[rng.integers(0, len(topics), count)] + 0.8 * own)


def text_rows(count: int) -> Rows:
    """Static embeddings of real documents: a 64-token window every 8 tokens."""
    embedder = make_embedder("static")
    batches: list[Rows] = []
    total, seen = 0, set()
    with lzma.open(TEXT, "rt", encoding="utf-8") as lines:
        for line in lines:
            text = json.loads(line)["context"]
            if text in seen:
                continue
            seen.add(text)
            units = embedder.units(text)
            windows = cut_windows(units.costs, size=64, overlap=0.875, max_windows=10**6)
            batches.append(
                embedder.embed(
                    [text[units.starts[w.start] : units.ends[w.end - 1]] for w in windows]
                )
            )
            total += len(windows)
            if total >= count:
                break
    return np.concatenate(batches)[:count]


def milliseconds(call: Callable[[], object], repeats: int) -> npt.NDArray[np.float64]:
    """CPU time of each of `repeats` calls, so that other load does not count."""
    taken = np.empty(repeats)
    for number in range(repeats):
        start = time.process_time()
        call()
        taken[number] = time.process_time() - start
    return taken * 1e3


def measure_search(index: VectorIndex, held: Rows, queries: Rows, case: str) -> Iterator[Row]:
    """Recall against brute force, and latency, one query at a time."""
    right, taken = 0, np.empty(len(queries))
    for number, query in enumerate(queries):
        start = time.process_time()
        found = index.search(query, 1, namespace=NAMESPACE)
        taken[number] = time.process_time() - start
        cosines = held @ query
        right += cosines[int(found[0].donor_id)] >= cosines.max() - TIE
    yield row(case, "recall_at_1", right / len(queries), "share", least=0.99)
    yield row(case, "search_p50", float(np.median(taken)) * 1e3, "ms")
    yield row(case, "search_p99", float(np.percentile(taken, 99)) * 1e3, "ms")


def measure_index(
    kind: str, held: Rows, fresh: Rows, queries: int, rng: np.random.Generator
) -> Iterator[Row]:
    """Fill an index, search it, replace a third of it, search again. `fresh` rows are not held."""
    count, dimension = held.shape
    index = VectorIndex(dimension, max_bytes=4 * 2**30)
    added = milliseconds_of_adds(index, held, range(count))
    case = f"{kind} {count}"
    yield row(case, "add_p50", float(np.median(added)), "ms")
    yield row(case, "add_p99", float(np.percentile(added, 99)), "ms")
    yield row(case, "bytes_per_vector", index.stats.nbytes / count, "bytes")
    near = turned(rng, held[rng.integers(0, count, queries)], NEAR_COSINE)
    yield from measure_search(index, held, near, f"{case} near")
    yield from measure_search(index, held, fresh[:queries], f"{case} fresh")
    renewed = rng.permutation(count)[: min(count // 3, len(fresh) - queries)]
    removed = milliseconds(
        iter_call([partial(index.remove, str(n), namespace=NAMESPACE) for n in renewed]),
        len(renewed),
    )
    yield row(case, "remove_p50", float(np.median(removed)), "ms")
    held = held.copy()
    held[renewed] = fresh[queries : queries + len(renewed)]
    milliseconds_of_adds(index, held, renewed)
    near = turned(rng, held[rng.integers(0, count, queries)], NEAR_COSINE)
    yield from measure_search(index, held, near, f"{case} near, {len(renewed)} renewed")


def milliseconds_of_adds(
    index: VectorIndex, held: Rows, numbers: Iterable[int]
) -> npt.NDArray[np.float64]:
    """CPU time of each addition of a held row."""
    calls = [partial(index.add, str(n), held[n], namespace=NAMESPACE) for n in numbers]
    return milliseconds(iter_call(calls), len(calls))


def iter_call(calls: Sequence[Callable[[], object]]) -> Callable[[], object]:
    """A function that makes the next of `calls` each time."""
    remaining = iter(calls)
    return lambda: next(remaining)()


def measure_exact(rng: np.random.Generator, dimension: int) -> Iterator[Row]:
    """The largest index that is scanned completely."""
    index = VectorIndex(dimension, max_bytes=4 * 2**30)
    held = random_rows(rng, EXACT_LIMIT, dimension)
    for number, vector in enumerate(held):
        index.add(str(number), vector, namespace=NAMESPACE)
    queries = turned(rng, held[:100], NEAR_COSINE)
    case = f"random {EXACT_LIMIT} (exact)"
    yield from measure_search(index, held, queries, case)
    yield row(case, "bytes_per_vector", index.stats.nbytes / len(held), "bytes")


PROSE = "The {0} warden of gate {0} wrote down what passed it on day {0}, and who had asked. "


def measure_embedders() -> Iterator[Row]:
    """The cost of embedding a prompt, and how far into it an embedder looks."""
    text = "".join(PROSE.format(number) for number in range(900))
    for kind in ("jaccard", "static", "minilm"):
        try:
            embedder = make_embedder(kind)
        except (MissingExtraError, EmbedderError) as error:
            print(f"{kind}: {error}", file=sys.stderr)
            continue
        embed_text(embedder, text[:2000])
        for characters in (8_000, 60_000):
            prompt = text[:characters]
            seen = embed_text(embedder, prompt)
            repeats = 1 if kind == "minilm" else 5
            taken = milliseconds(partial(embed_text, embedder, prompt), repeats)
            case = f"{kind} {characters} characters"
            yield row(case, "windows", len(seen.windows), "windows")
            yield row(case, "embed_p50", float(np.median(taken)), "ms")
            yield row(
                case, "seen_to", int(seen.bounds[-1, 1]), "characters", least=len(prompt.rstrip())
            )


def measure_alignment(rng: np.random.Generator) -> Iterator[Row]:
    """Fuzzy alignment of edited prompts, and the comparison of short windows."""
    for tokens in (2_000, 8_000, 32_000):
        donor = rng.integers(0, 50_000, tokens).astype(np.int32)
        target = donor.copy()
        edits = rng.random(tokens) < 0.05
        target[edits] = rng.integers(50_000, 60_000, int(edits.sum()))
        taken = milliseconds(partial(align, target, donor), 7)
        case = f"align {tokens} tokens, 5 % substituted"
        yield row(case, "align_p50", float(np.median(taken)), "ms")
        yield row(case, "aligned", align(target, donor).similarity, "share")
    for tokens in (64, 128):
        a = rng.integers(0, 50_000, tokens).astype(np.int32)
        b = a.copy()
        b[tokens // 2 : tokens // 2 + 4] += 1
        taken = milliseconds(partial(edit_similarity, a, b), 2000) * 1e3
        case = f"edit_similarity {tokens} tokens"
        yield row(case, "p50", float(np.median(taken)), "µs", most=50.0)


def measure(arguments: argparse.Namespace) -> Iterator[Row]:
    """Yield every requested row as it is measured."""
    rng = np.random.default_rng(arguments.seed)
    count, dimension, queries = arguments.vectors, arguments.dimension, arguments.queries
    extra = queries + count // 3
    if "alignment" not in arguments.skip:
        yield from measure_alignment(rng)
    if "embedders" not in arguments.skip:
        yield from measure_embedders()
    if "index" in arguments.skip:
        return
    yield from measure_exact(rng, dimension)
    for kind, make in (("clustered", clustered_rows), ("random", random_rows)):
        drawn = make(rng, count + extra, dimension)
        yield from measure_index(kind, drawn[:count], drawn[count:], queries, rng)
    if TEXT.is_file():
        drawn = text_rows(count + extra)
        rng.shuffle(drawn)
        held = len(drawn) - min(extra, len(drawn) // 4)
        yield from measure_index("text", drawn[:held], drawn[held:], queries, rng)
    else:
        print("text: not measured, the evaluation data is missing", file=sys.stderr)


def main() -> int:
    """Measure, print one line per row, and write JSON if asked; 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vectors", type=int, default=100_000)
    parser.add_argument("--dimension", type=int, default=384)
    parser.add_argument("--queries", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--skip", action="append", default=[], choices=["index", "embedders", "alignment"]
    )
    parser.add_argument("--json", type=Path, help="also write the report here")
    arguments = parser.parse_args()
    rows: list[Row] = []
    for measured in measure(arguments):
        rows.append(measured)
        verdict = {None: "", True: "ok", False: "MISSED"}[measured["ok"]]
        print(
            f"{measured['case']:<42} {measured['metric']:<18} {measured['value']:>12.4f} "
            f"{measured['unit']:<10} {measured['target'] or '':<10} {verdict}",
            flush=True,
        )
    if arguments.json:
        report = {
            "benchmark": "vectors",
            "command": " ".join(["python", "benchmarks/vectors.py", *sys.argv[1:]]),
            "rows": rows,
        }
        arguments.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 1 if any(measured["ok"] is False for measured in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
