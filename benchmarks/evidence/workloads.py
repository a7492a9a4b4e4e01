"""The workloads: what a server is asked, request by request, from a seed.

Every workload is a function of (seed, requests, tokens) and returns its requests in the order they
arrive. Request n depends on the seed and on n only, so a longer run starts with a shorter one.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import replace

from benchmarks.evidence.asks import Ask, Passage
from sembench.conversations.catalogue import load_story
from sembench.conversations.rendering import prompt_of
from sembench.conversations.story import Limits, scripted_turns
from semblend.quality.texts.documents import INSTRUCTIONS, Document, DocumentWriter
from semblend.quality.texts.prose import paragraph
from semblend.quality.texts.workloads import document_of

LIBRARY = 40
"""Documents of a retrieval workload. Its popularity follows Zipf's law with exponent 1."""
RETRIEVED = 4
"""Documents in a prompt."""
HELD = 5
"""Documents that are asked about over and over, or edited over and over."""
MIX_SHARE = 0.3
HOT = 20
"""Documents of the workload over time; they fit every cache of a run."""
NEVER_SEEN = 1_000_000
"""Ranks from here on belong to documents that appear once."""
AGENTS = 4
"""Agent runs in progress at the same time."""
WORDS_PER_TOKEN = 0.6

Workload = Callable[[int, int, int], list[Ask]]

WORKLOADS: dict[str, Workload] = {}
TITLES: dict[str, str] = {}


def _workload(name: str, title: str) -> Callable[[Workload], Workload]:
    def add(make: Workload) -> Workload:
        WORKLOADS[name], TITLES[name] = make, title
        return make

    return add


def _source(name: str, seed: int, number: int | str) -> random.Random:
    return random.Random(f"semblend-evidence-{name}-{seed}-{number}")


def _document(name: str, seed: int, number: int | str, tokens: int) -> Document:
    writer = DocumentWriter(_source(name, seed, f"document-{number}").randrange(2**31))
    return document_of(writer, max(tokens, 360), facts=2)


def zipf_draw(source: random.Random, documents: int, count: int) -> list[int]:
    """`count` different documents, number n with weight 1 / (n + 1), in random order."""
    weights = [1.0 / (rank + 1) for rank in range(documents)]
    drawn: list[int] = []
    while len(drawn) < count:
        (number,) = source.choices(range(documents), weights)
        drawn.append(number)
        weights[number] = 0.0
    source.shuffle(drawn)
    return drawn


def _retrieved(
    name: str, seed: int, number: int, tokens: int, *, library: int, fresh: int = 0
) -> Ask:
    """A question about one of the retrieved documents, of which `fresh` were never seen."""
    source, size = _source(name, seed, number), tokens // RETRIEVED
    ranks = zipf_draw(source, library, RETRIEVED - fresh)
    ranks += [NEVER_SEEN + number * RETRIEVED + place for place in range(fresh)]
    source.shuffle(ranks)
    documents = [_document(name, seed, rank, size) for rank in ranks]
    asked = source.choice(source.choice(documents).facts)
    return Ask(
        name=f"{name}-{seed}-{number}",
        instruction=INSTRUCTIONS[0],
        passages=tuple(
            Passage(rank=rank, text=document.text)
            for rank, document in zip(ranks, documents, strict=True)
        ),
        question=asked.question,
        answers=(asked.value,),
        shared=fresh < RETRIEVED,
    )


@_workload("rag", "retrieval: four documents of forty, Zipf, in random order")
def rag(seed: int, requests: int, tokens: int) -> list[Ask]:
    """Retrieval returns popular documents again and again, each time in another order."""
    return [_retrieved("rag", seed, n, tokens, library=LIBRARY) for n in range(requests)]


@_workload("instructions", "one document, many instructions in front of it")
def instructions(seed: int, requests: int, tokens: int) -> list[Ask]:
    """Five documents, each after an instruction nobody has used before."""
    documents = [_document("instructions", seed, number, tokens) for number in range(HELD)]
    asks = []
    for number in range(requests):
        source = _source("instructions", seed, number)
        rank = source.randrange(HELD)
        asked = source.choice(documents[rank].facts)
        words = f"{source.choice(INSTRUCTIONS)} {' '.join(paragraph(source, 1))}"
        asks.append(
            Ask(
                name=f"instructions-{seed}-{number}",
                instruction=words,
                passages=(Passage(rank=rank, text=documents[rank].text),),
                question=asked.question,
                answers=(asked.value,),
                shared=True,
            )
        )
    return asks


@_workload("edited", "versions of documents: one fact changes each time, and is asked for")
def edited(seed: int, requests: int, tokens: int) -> list[Ask]:
    """Every request brings a new version of one of five documents and asks for what changed."""
    held = [_document("edited", seed, number, tokens) for number in range(HELD)]
    asks = []
    for number in range(requests):
        source = _source("edited", seed, number)
        rank = source.randrange(HELD)
        old = source.choice(held[rank].facts)
        new = replace(old, value=str(source.randrange(1000, 10_000)))
        held[rank] = held[rank].with_facts({old: new})
        asks.append(
            Ask(
                name=f"edited-{seed}-{number}",
                instruction=INSTRUCTIONS[0],
                passages=(Passage(rank=rank, text=held[rank].text),),
                question=new.question,
                answers=(new.value,),
                shared=True,
            )
        )
    return asks


@_workload("agents", "agent runs side by side: tools, forks, edits and compaction")
def agents(seed: int, requests: int, tokens: int) -> list[Ask]:
    """The turns of four agent runs at a time, one from each in turn, with scripted answers."""
    return list(itertools.islice(_turns(seed, tokens), requests))


def _turns(seed: int, tokens: int) -> Iterator[Ask]:
    limits = Limits(compact_words=max(200, int(tokens * WORDS_PER_TOKEN)))
    stories = itertools.count()

    def run() -> Iterator[Ask]:
        for index in stories:
            story = load_story("agent", seed=seed, index=index, limits=limits)
            for turn in scripted_turns(story):
                yield Ask(
                    name=f"agents-{seed}-{turn.turn_id}",
                    rendered=prompt_of(turn),
                    question=turn.question,
                    answers=turn.expected,
                    shared=True,
                )

    running = [run() for _ in range(AGENTS)]
    for turns in itertools.cycle(running):
        yield next(turns)


@_workload("mixed", "30 % of the requests share documents, 70 % share nothing")
def mixed(seed: int, requests: int, tokens: int) -> list[Ask]:
    """Most prompts are new; some are retrieval over a library."""
    return [
        _retrieved(
            "mixed",
            seed,
            number,
            tokens,
            library=LIBRARY,
            fresh=0 if _source("mix", seed, number).random() < MIX_SHARE else RETRIEVED,
        )
        for number in range(requests)
    ]


@_workload("novel", "novel queries only: nothing was ever seen before")
def novel(seed: int, requests: int, tokens: int) -> list[Ask]:
    """Nothing can be reused but the first words; what remains is what looking costs."""
    return [
        _retrieved("novel", seed, number, tokens, library=LIBRARY, fresh=RETRIEVED)
        for number in range(requests)
    ]


@_workload("over_time", "three documents of twenty and one never seen, while caches overflow")
def over_time(seed: int, requests: int, tokens: int) -> list[Ask]:
    """The set that is asked for fits the caches; what is never asked for again does not."""
    return [
        _retrieved("over_time", seed, number, tokens, library=HOT, fresh=1)
        for number in range(requests)
    ]
