"""The synthetic profile: rule-generated documents with facts inserted to ask about.

Record i of a dataset depends only on the seed, the dataset and i. Any number of records
can be generated one at a time, and the first hundred stay the same if you ask for a
thousand.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from sembench.errors import SourceError
from sembench.facts import make_facts, make_name
from sembench.profiles.base import SourceRecord, length_band
from sembench.profiles.synthetic_words import TRADES, Trade

DEFAULT_RECORDS = 25
_PARAGRAPHS = (5, 10, 20)
"""Documents cycle through these sizes: about 350, 700 and 1,400 words."""
_FACTS = 3


class Synthetic:
    """Generated documents about several trades, `records_per_dataset` of each."""

    def __init__(
        self,
        *,
        datasets: tuple[str, ...] = (),
        records_per_dataset: int | None = None,
        seed: int = 0,
        profile: str = "synthetic-v1",
    ) -> None:
        for name in datasets:
            if name not in TRADES:
                raise SourceError(
                    f"--datasets: {name!r} is not a synthetic dataset; there are "
                    f"{', '.join(TRADES)}"
                )
        self._datasets = datasets or tuple(TRADES)
        self._count = DEFAULT_RECORDS if records_per_dataset is None else records_per_dataset
        self._seed = seed
        self._profile = profile

    @property
    def profile(self) -> str:
        """The profile name stored in the manifest."""
        return self._profile

    def records(self) -> Iterator[SourceRecord]:
        """Yield all records, dataset by dataset."""
        for dataset in self._datasets:
            for index in range(self._count):
                yield synthetic_record(dataset, index, seed=self._seed)


def synthetic_record(dataset: str, index: int, *, seed: int) -> SourceRecord:
    """Record number `index` of a synthetic dataset."""
    trade = TRADES[dataset]
    random = Random(f"synthetic-v1/{seed}/{dataset}/{index}")
    paragraphs = [_paragraph(trade, random) for _ in range(_PARAGRAPHS[index % len(_PARAGRAPHS)])]
    facts = make_facts(random, _FACTS)
    for number, fact in enumerate(facts):
        # Spread facts over the document, so that no part of it can be skipped.
        position = (2 * number + 1) * len(paragraphs) // (2 * _FACTS)
        paragraphs[position] += " " + fact.statement
    asked = random.choice(facts)
    title = trade.title.format(name=make_name(random))
    context = "\n\n".join([title, *paragraphs])
    words = len(context.split())
    return SourceRecord(
        dataset=dataset,
        source_id=f"{dataset}-{seed}-{index}",
        context=context,
        input=asked.question,
        answers=(asked.value,),
        source_index=index,
        metadata={
            "domain": dataset.removeprefix("synthetic_"),
            "length": words,
            "length_band": length_band(words),
        },
    )


def synthetic_paragraphs(dataset: str, key: str, paragraphs: int) -> tuple[Random, str, list[str]]:
    """A title and paragraphs of one trade by `key`, and the random generator after them."""
    trade, random = TRADES[dataset], Random(key)
    title = trade.title.format(name=make_name(random))
    return random, title, [_paragraph(trade, random) for _ in range(paragraphs)]


def _paragraph(trade: Trade, random: Random) -> str:
    frames = random.sample(trade.frames, 6)
    return " ".join(_sentence(frame, trade, random) for frame in frames)


def _sentence(frame: str, trade: Trade, random: Random) -> str:
    text = frame.format(
        name=make_name(random),
        who=random.choice(trade.who),
        thing=random.choice(trade.thing),
        place=random.choice(trade.place),
        when=random.choice(trade.when),
        n=random.randrange(2, 900),
    )
    return text[0].upper() + text[1:]
