"""Hit rate and speed-up across datasets and conversation logs.

    python -m benchmarks.suite.workloads --base-url http://localhost:8000 \\
        --data path/to/datasets --datasets xsum cnn_dailymail samsum --conversations chats.jsonl

A dataset's documents are each served once behind one instruction and asked about behind
another, all in one cache, so that donors compete as they do in production. Documents are cut or
put together to the lengths asked for. A log is JSONL or Parquet of conversations (``messages`` or
``conversation`` with role and content, or ``conversations`` with from and value), replayed turn
by turn. Without `--data` the built-in fixture is used.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.suite import datasets
from benchmarks.suite.endpoint import Endpoint, parser, run
from benchmarks.suite.figures import Figures
from benchmarks.suite.pairs import Pair, add_reuse, add_speedup
from sembench.profiles import SourceRecord
from sembench.profiles.rows import file_rows
from sembench.profiles.shapes import conversation
from semblend.quality.texts.documents import INSTRUCTIONS

Messages = tuple[tuple[str, str], ...]


async def main(arguments: list[str]) -> int:
    flags = parser(__doc__ or "")
    datasets.add_flags(flags)
    flags.add_argument("--conversations", type=Path, help="file of conversations")
    chosen = flags.parse_args(arguments)
    endpoint = await Endpoint.open(chosen)
    try:
        data = datasets.said(chosen)
        if chosen.conversations:
            data += f"; conversations {chosen.conversations}"
        figures = Figures(benchmark="workloads", context=endpoint.context(data))
        for name, found in datasets.cases(chosen, endpoint.fitting(chosen.lengths)):
            _add(figures, name, await _dataset(endpoint, found), chosen.min_speedup)
        if chosen.conversations:
            dialogues = itertools.islice(read_conversations(chosen.conversations), chosen.samples)
            pairs = await _conversations(endpoint, dialogues)
            _add(figures, f"conversations: {chosen.conversations.stem}", pairs, chosen.min_speedup)
    finally:
        await endpoint.close()
    return figures.show(as_json=chosen.json, output=chosen.output)


def _add(figures: Figures, name: str, pairs: list[Pair], target: float | None) -> None:
    add_reuse(figures, name, pairs)
    add_speedup(figures, name, "overall_speedup", pairs)
    add_speedup(
        figures, name, "hit_only_speedup", [pair for pair in pairs if pair.hit], at_least=target
    )


async def _dataset(endpoint: Endpoint, found: list[tuple[SourceRecord, str]]) -> list[Pair]:
    await endpoint.empty()
    salt = endpoint.new_salt("dataset")
    prompts = [prompts_of(record, document) for record, document in found]
    for donor, _ in prompts:
        await endpoint.ask(donor, salt=salt, max_tokens=1)
    await endpoint.settle()
    warm = [await endpoint.ask(target, salt=salt) for _, target in prompts]
    pairs: list[Pair] = []
    for (_, target), served in zip(prompts, warm, strict=True):
        await endpoint.empty()
        cold = await endpoint.ask(target, salt=endpoint.new_salt("cold"))
        pairs.append(Pair(cold=cold, warm=served))
    return pairs


def prompts_of(record: SourceRecord, document: str) -> tuple[str, str]:
    """The document behind one instruction, and behind another with the record's question."""
    question = record.input or "What is this text about?"
    return (
        f"{INSTRUCTIONS[0]}\n\n{document}\n\nQuestion: What is the first thing it mentions?",
        f"{INSTRUCTIONS[2]}\n\n{document}\n\nQuestion: {question}",
    )


async def _conversations(endpoint: Endpoint, dialogues: Iterator[Messages]) -> list[Pair]:
    pairs: list[Pair] = []
    await endpoint.empty()
    salt = endpoint.new_salt("log")
    served = []
    for messages in dialogues:
        ends = [at + 1 for at, (role, _) in enumerate(messages) if role == "user"]
        for end in ends:
            served.append((messages[:end], await endpoint.ask(salt=salt, messages=messages[:end])))
            await endpoint.settle()
    for prompt, warm in served:
        await endpoint.empty()
        cold = await endpoint.ask(salt=endpoint.new_salt("cold"), messages=prompt)
        pairs.append(Pair(cold=cold, warm=warm))
    return pairs


def read_conversations(path: Path) -> Iterator[Messages]:
    """Conversations of a file, in any of the usual shapes."""
    for where, row in file_rows([path]):
        yield tuple(conversation(row, where))


if __name__ == "__main__":
    sys.exit(run(main(sys.argv[1:])))
