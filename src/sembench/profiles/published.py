"""Published datasets by name, in the field names their publishers gave them.

Each is a shape: rows in, LongBench's fields out. Rows come from files, or from the hub where one
asks for it; nothing is fetched unasked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from sembench.errors import SourceError, UsageError
from sembench.profiles import shapes
from sembench.profiles.base import SourceRecord
from sembench.profiles.local_files import to_record
from sembench.profiles.rows import file_rows, hub_rows, published_files

Shape = Callable[[Iterable[tuple[str, Mapping[str, Any]]]], Iterator[tuple[str, dict[str, Any]]]]
"""(where, row) in, (where, LongBench's fields) out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """One dataset."""

    title: str
    fields: str
    """The fields that are read, for people."""
    shape: Shape
    hub: str = ""
    """Its name on the hub; empty where it has to be downloaded by hand."""
    config: str | None = None
    split: str = "test"


PUBLISHED: dict[str, Published] = {
    "xsum": Published(
        title="XSum: news articles with one-sentence summaries",
        fields="id, document, summary",
        shape=shapes.summaries("document", "summary"),
        hub="EdinburghNLP/xsum",
    ),
    "cnn_dailymail": Published(
        title="CNN/DailyMail: long news articles with highlights",
        fields="id, article, highlights",
        shape=shapes.summaries("article", "highlights"),
        hub="abisee/cnn_dailymail",
        config="3.0.0",
    ),
    "wikihow": Published(
        title="WikiHow: instructions with their headlines",
        fields="title, text, headline",
        shape=shapes.summaries("text", "headline"),
    ),
    "multi_news": Published(
        title="MultiNews: several articles on one event with a summary",
        fields="document, summary",
        shape=shapes.multi_news,
        hub="alexfabbri/multi_news",
    ),
    "samsum": Published(
        title="SAMSum: chats of short turns with summaries",
        fields="id, dialogue, summary",
        shape=shapes.summaries("dialogue", "summary", asks="What do the speakers agree on?"),
        hub="knkarthick/samsum",
    ),
    "wildchat": Published(
        title="WildChat: conversations of people with chatbots",
        fields="conversation_hash, conversation (role, content), language",
        shape=shapes.wildchat,
        hub="allenai/WildChat-1M",
        split="train",
    ),
    "scbench": Published(
        title="SCBench: several questions about one long context",
        fields="id, context, multi_turns (input, answer)",
        shape=shapes.scbench,
        hub="microsoft/SCBench",
        config="scbench_kv",
    ),
    "longeval": Published(
        title="LongEval: lines to be found again",
        fields="prompt, expected_number",
        shape=shapes.longeval,
    ),
    "triviaqa": Published(
        title="TriviaQA: questions with pages that answer them",
        fields="question_id, question, entity_pages (wiki_context), search_results, answer",
        shape=shapes.triviaqa,
        hub="mandarjoshi/trivia_qa",
        config="rc.wikipedia",
        split="validation",
    ),
    "narrativeqa": Published(
        title="NarrativeQA: questions about whole stories",
        fields="document (id, text), question (text), answers (text)",
        shape=shapes.narrativeqa,
        hub="deepmind/narrativeqa",
    ),
    "wikitext-103": Published(
        title="WikiText-103: articles of an encyclopaedia, line by line",
        fields="text",
        shape=shapes.wikitext,
        hub="Salesforce/wikitext",
        config="wikitext-103-raw-v1",
    ),
}
"""Datasets by the name they go by here."""


class PublishedData:
    """Records of published datasets, from a folder or from the hub."""

    profile = "published"

    def __init__(
        self,
        *,
        datasets: tuple[str, ...] = (),
        data_dir: Path | None = None,
        revision: str | None = None,
        limit: int | None = None,
    ) -> None:
        for name in datasets:
            if name not in PUBLISHED:
                raise UsageError(f"--datasets: {name!r} is not one of {', '.join(PUBLISHED)}")
        self._limit = limit
        self._revision = revision
        self._files: dict[str, list[Path]] = {}
        if data_dir is not None:
            self._files = _found(data_dir, datasets)
        elif revision is None:
            named = datasets[0] if len(datasets) == 1 else "<dataset>"
            raise SourceError(
                "--data-dir: the published datasets are not part of SemBench. Give a folder with "
                f"{named}.jsonl, {named}.parquet or a folder {named}, or --hf-revision main to "
                "read them from the hub"
            )
        self._datasets = tuple(self._files) or datasets or tuple(_on_hub())

    def records(self) -> Iterator[SourceRecord]:
        """The first `limit` records of each chosen dataset, dataset by dataset."""
        for name in self._datasets:
            shaped = PUBLISHED[name].shape(self._rows(name))
            found = 0
            for index, (where, data) in enumerate(islice(shaped, self._limit)):
                found += 1
                yield to_record(data, dataset=name, index=index, where=where)
            if not found:
                raise SourceError(
                    f"{name}: no row with {PUBLISHED[name].fields} in {self._origin(name)}"
                )

    def _rows(self, name: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        if name in self._files:
            return file_rows(self._files[name])
        published = PUBLISHED[name]
        if not published.hub:
            raise SourceError(f"{name} is not on the hub in a form that can be read; --data-dir")
        return hub_rows(
            published.hub,
            config=published.config,
            split=published.split,
            revision=self._revision,
        )

    def _origin(self, name: str) -> str:
        files = self._files.get(name)
        return ", ".join(map(str, files)) if files else PUBLISHED[name].hub


def _on_hub() -> Iterator[str]:
    return (name for name, published in PUBLISHED.items() if published.hub)


def _found(data_dir: Path, datasets: tuple[str, ...]) -> dict[str, list[Path]]:
    """The files of each dataset asked for; left out, of each that the folder holds."""
    found: dict[str, list[Path]] = {}
    for name in datasets or PUBLISHED:
        files = published_files(data_dir, name, split=PUBLISHED[name].split)
        if files:
            found[name] = files
        elif name in datasets:
            raise SourceError(
                f"--data-dir: {data_dir} holds no {name}.jsonl, {name}.csv, {name}.parquet or "
                f"folder {name} of such files (fields: {PUBLISHED[name].fields})"
            )
    if not found:
        raise SourceError(f"--data-dir: {data_dir} holds none of {', '.join(PUBLISHED)}")
    return found
