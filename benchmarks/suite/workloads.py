"""Hit rate and speed-up across datasets and conversation logs.

    python -m benchmarks.suite.workloads --base-url http://localhost:8000 \\
        --data path/to/longbench.jsonl --datasets qmsum squad --conversations chats.jsonl

A dataset's documents are each served once behind one instruction and asked about behind
another, all in one cache, so that donors compete as they do in production. A log is
JSONL of conversations (``messages`` with role and content, or ``conversations`` with
from and value), replayed turn by turn. Without `--data` the built-in fixture is used.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.suite.endpoint import Endpoint, parser, run
from benchmarks.suite.figures import Figures
from benchmarks.suite.pairs import Pair, add_reuse, add_speedup
from sembench.errors import SemBenchError
from sembench.manifests.files import open_text
from sembench.profiles import SourceRecord, load_profile
from semblend.quality.documents import INSTRUCTIONS

_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant"}
Messages = tuple[tuple[str, str], ...]


async def main(arguments: list[str]) -> int:
    flags = parser(__doc__ or "")
    flags.add_argument("--data", type=Path, help="file or folder of LongBench-format JSONL")
    flags.add_argument("--datasets", nargs="+", default=[], help="of the data; left out, all")
    flags.add_argument("--conversations", type=Path, help="JSONL of conversations")
    flags.add_argument("--max-chars", type=int, default=4000, help="of a document that are used")
    chosen = flags.parse_args(arguments)
    endpoint = await Endpoint.open(chosen)
    try:
        data = str(chosen.data or "built-in fixture")
        if chosen.conversations:
            data += f"; conversations {chosen.conversations}"
        figures = Figures(benchmark="workloads", context=endpoint.context(data))
        for name, records in _datasets(chosen):
            _add(figures, name, await _dataset(endpoint, records), chosen.min_speedup)
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


def _datasets(flags: Any) -> Iterator[tuple[str, list[SourceRecord]]]:
    profile = "longbench-v1" if flags.data else "fixture"
    source = load_profile(
        profile,
        datasets=tuple(flags.datasets),
        data_dir=flags.data,
        hf_revision=None,
        records_per_dataset=flags.samples,
        seed=flags.seed,
    )
    grouped: dict[str, list[SourceRecord]] = {}
    for record in source.records():
        kept = grouped.setdefault(record.dataset, [])
        if len(kept) < flags.samples:
            kept.append(record)
    yield from sorted(grouped.items())


async def _dataset(endpoint: Endpoint, records: list[SourceRecord]) -> list[Pair]:
    await endpoint.empty()
    salt = endpoint.new_salt("dataset")
    prompts = [_prompts(record, endpoint.flags.max_chars) for record in records]
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


def _prompts(record: SourceRecord, max_chars: int) -> tuple[str, str]:
    """The document behind one instruction, and behind another with its question."""
    document = record.context[:max_chars]
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
    """Conversations of a JSONL file, in either of the two usual shapes."""
    with open_text(path) as stream:
        for number, line in enumerate(stream, start=1):
            if not line.strip():
                continue
            try:
                data = json.loads(line)
                turns = data.get("messages") or data["conversations"]
                messages = tuple(
                    (
                        _ROLES[str(turn.get("role") or turn["from"]).lower()],
                        str(turn.get("content") or turn["value"]),
                    )
                    for turn in turns
                    if str(turn.get("role") or turn.get("from")).lower() != "system"
                )
            except (ValueError, KeyError, AttributeError, TypeError) as error:
                raise SemBenchError(
                    f"{path}:{number}: not a conversation (messages with role and content, or "
                    f"conversations with from and value): {error!r}"
                ) from error
            if messages:
                yield messages


if __name__ == "__main__":
    sys.exit(run(main(sys.argv[1:])))
