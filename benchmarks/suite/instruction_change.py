"""The same document and question under changed instructions.

    python -m benchmarks.suite.instruction_change --base-url http://localhost:8000 --length 2048

Every pair has one document, one question, and two wordings of the instruction before them. This
moves every block boundary, so an exact prefix cache has nothing to offer.
"""

from __future__ import annotations

import sys

from benchmarks.suite.documents import case, document_of
from benchmarks.suite.endpoint import Endpoint, parser, run
from benchmarks.suite.figures import Figures
from benchmarks.suite.pairs import Pair, add_reuse, add_speedup, add_time, confirmed
from sembench.quality import states_value
from semblend.quality.texts.documents import DocumentWriter


async def main(arguments: list[str]) -> int:
    flags = parser(__doc__ or "")
    flags.add_argument("--length", type=int, default=8192, help="tokens of a document")
    chosen = flags.parse_args(arguments)
    endpoint = await Endpoint.open(chosen)
    try:
        figures = Figures(
            benchmark="instruction_change",
            context=endpoint.context(
                "generated prose with facts (semblend.quality.texts.documents)"
            ),
        )
        (chosen.length,) = endpoint.fitting([chosen.length])
        await _measure(endpoint, figures)
    finally:
        await endpoint.close()
    return figures.show(as_json=chosen.json, output=chosen.output)


async def _measure(endpoint: Endpoint, figures: Figures) -> None:
    flags = endpoint.flags
    writer = DocumentWriter(flags.seed)
    pairs: list[Pair] = []
    right: list[tuple[bool, bool]] = []
    for sample in range(flags.samples):
        document = document_of(writer, flags.length)
        donor = case(document, instruction=sample, fact=sample)
        target = case(document, instruction=sample + 1, fact=sample)
        await endpoint.empty()
        cold = await endpoint.ask(target.text, salt=endpoint.new_salt("cold"))
        await endpoint.empty()
        salt = endpoint.new_salt("warm")
        await endpoint.ask(donor.text, salt=salt, max_tokens=1)
        await endpoint.settle()
        pair = Pair(cold=cold, warm=await endpoint.ask(target.text, salt=salt))
        pairs.append(pair)
        right.append(
            (states_value(cold.text, target.answer), states_value(pair.warm.text, target.answer))
        )
    name = "other instruction"
    add_time(figures, name, "cold_ttft", [p.cold for p in pairs], backend_confirmed=None)
    add_time(
        figures, name, "warm_ttft", [p.warm for p in pairs], backend_confirmed=confirmed(pairs)
    )
    add_speedup(figures, name, "speedup", pairs, at_least=flags.min_speedup)
    add_reuse(figures, name, pairs)
    for position, metric in enumerate(("cold_accuracy", "warm_accuracy")):
        figures.add(
            name,
            metric,
            sum(both[position] for both in right) / len(right),
            "",
            context_tokens=figures.rows[0].context_tokens,
            samples=len(right),
            backend_confirmed=confirmed(pairs) if position else None,
        )


if __name__ == "__main__":
    sys.exit(run(main(sys.argv[1:])))
