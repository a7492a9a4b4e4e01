"""Perplexity ratio and judged quality per dataset, warm against cold.

    python -m benchmarks.suite.quality --base-url http://localhost:8000 \\
        --data path/to/data --judge-command "python judge.py" --ppl-model models/…

Perplexity uses the endpoint's own log probabilities, and with `--ppl-model` also a local model. A
perplexity ratio near 1 does not prove that answers are right, so the table also has answer
accuracy and ROUGE-L. Documents that differ from their donors in one fact ("edited") are a
separate dataset, in which the donor's facts are counted.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.suite import datasets
from benchmarks.suite.documents import Case, case, document_of
from benchmarks.suite.endpoint import Endpoint, parser, run
from benchmarks.suite.figures import Figures
from benchmarks.suite.judging import LocalModel, judge, local_model, perplexity
from benchmarks.suite.pairs import Pair, add_reuse, confirmed, context_tokens
from benchmarks.suite.workloads import prompts_of
from sembench import statistics
from sembench.quality import answer_recall, rouge_l, states_value
from semblend.quality.texts.documents import DocumentWriter, Fact


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """The donor's and the target's prompt, the right answer, and what would be a leak."""

    donor: str
    target: str
    answers: tuple[str, ...]
    leaked: str | None = None


async def main(arguments: list[str]) -> int:
    flags = parser(__doc__ or "")
    datasets.add_flags(flags)
    flags.add_argument("--ppl-model", help="local model that scores answers")
    flags.add_argument("--judge-command", help="reads {baseline, semblend} JSON, prints a score")
    flags.add_argument("--max-ppl-ratio", type=float, help="target perplexity ratio")
    chosen = flags.parse_args(arguments)
    scorer = local_model(chosen.ppl_model)
    endpoint = await Endpoint.open(chosen)
    try:
        data = "generated documents"
        if chosen.data or chosen.hf_revision:
            data += f"; {datasets.said(chosen)}"
        figures = Figures(benchmark="quality", context=endpoint.context(data))
        for name, items in cases(chosen, endpoint.fitting(chosen.lengths)):
            await _measure(endpoint, figures, name, items, scorer)
    finally:
        await endpoint.close()
    return figures.show(as_json=chosen.json, output=chosen.output)


def cases(
    flags: Any, lengths: Sequence[int], *, facts: str = "facts, "
) -> Iterator[tuple[str, list[Item]]]:
    """Items by name: documents with facts, then those of a dataset if one was named."""
    for length in lengths:
        numbers = range(flags.samples)
        of = f"{length} tokens"
        yield f"{facts}moved, {of}", [moved(flags.seed + n, length, n) for n in numbers]
        yield f"{facts}edited, {of}", [edited(flags.seed + n, length, n) for n in numbers]
    if flags.data is None and flags.hf_revision is None:
        return
    for name, found in datasets.cases(flags, lengths):
        items = []
        for record, document in found:
            donor, target = prompts_of(record, document)
            items.append(Item(donor=donor, target=target, answers=record.answers))
        yield name, items


def moved(seed: int, length: int, number: int) -> Item:
    """The same document behind another instruction, asked for another fact."""
    document = document_of(DocumentWriter(seed), length)
    target = case(document, instruction=number + 1, fact=number)
    donor = case(document, instruction=number, fact=number + 1)
    return Item(donor=donor.text, target=target.text, answers=(target.answer,))


def edited(seed: int, length: int, number: int) -> Item:
    """The donor's document states other values for two facts: the hard case."""
    writer = DocumentWriter(seed + 1000)
    document = document_of(writer, length)
    asked, other = document.facts[0], document.facts[1]
    exchanged: dict[Fact, Fact] = {
        asked: Fact(attribute=asked.attribute, subject=asked.subject, value=other.value),
        other: Fact(attribute=other.attribute, subject=other.subject, value=asked.value),
    }
    target: Case = case(document, instruction=number, fact=0)
    donor = case(document.with_facts(exchanged), instruction=number, fact=0)
    return Item(donor=donor.text, target=target.text, answers=(asked.value,), leaked=other.value)


async def _measure(
    endpoint: Endpoint, figures: Figures, name: str, items: list[Item], scorer: LocalModel | None
) -> None:
    flags = endpoint.flags
    pairs: list[Pair] = []
    for item in items:
        await endpoint.empty()
        salt = endpoint.new_salt("cold")
        cold = await endpoint.ask(item.target, salt=salt, top_logprobs=5)
        await endpoint.empty()
        salt = endpoint.new_salt("warm")
        await endpoint.ask(item.donor, salt=salt, max_tokens=1)
        await endpoint.settle()
        warm = await endpoint.ask(item.target, salt=salt, top_logprobs=5)
        pairs.append(Pair(cold=cold, warm=warm))

    shared: dict[str, Any] = {
        "context_tokens": context_tokens([pair.warm for pair in pairs]),
        "backend_confirmed": confirmed(pairs),
    }

    def add(metric: str, values: list[float], *, at_most: float | None = None) -> None:
        interval = statistics.bootstrap_mean(values)
        figures.add(
            name,
            metric,
            None if interval is None else interval.value,
            "",
            samples=len(values),
            interval=None if interval is None else (interval.low, interval.high),
            at_most=at_most,
            **shared,
        )

    # An answer that is right because nothing was reused says nothing about reuse.
    add_reuse(figures, name, pairs)
    ratios = [
        after / before
        for pair in pairs
        if (before := perplexity(pair.cold)) and (after := perplexity(pair.warm))
    ]
    add("ppl_ratio", ratios, at_most=flags.max_ppl_ratio)
    if scorer is not None:
        add("ppl_ratio_local_model", list(_local_ratios(scorer, items, pairs)))
    add("rouge_l_warm_vs_cold", [rouge_l(pair.warm.text, pair.cold.text) for pair in pairs])
    both = list(zip(items, pairs, strict=True))
    for metric, which in (("cold_accuracy", "cold"), ("warm_accuracy", "warm")):
        scores = [answer_recall(getattr(pair, which).text, item.answers) for item, pair in both]
        add(metric, [score for score in scores if score is not None])
    leaks = [float(states_value(pair.warm.text, item.leaked)) for item, pair in both if item.leaked]
    if leaks:
        add("donor_fact_leak_rate", leaks)
    if flags.judge_command:
        add(
            "judge_score",
            [
                judge(flags.judge_command, baseline=pair.cold.text, semblend=pair.warm.text)
                for pair in pairs
            ],
        )


def _local_ratios(scorer: LocalModel, items: list[Item], pairs: list[Pair]) -> Iterator[float]:
    for item, pair in zip(items, pairs, strict=True):
        before = scorer.perplexity(item.target, pair.cold.text)
        after = scorer.perplexity(item.target, pair.warm.text)
        if before and after:
            yield after / before


if __name__ == "__main__":
    sys.exit(run(main(sys.argv[1:])))
