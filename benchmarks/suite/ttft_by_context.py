"""Time to first token by context length: cold, miss and hit.

    python -m benchmarks.suite.ttft_by_context --base-url http://localhost:8000 --lengths 1024 4096

*cold*: nothing was served before. *miss*: the cache holds unrelated prompts of the same length,
so a lookup costs time and finds nothing. *hit*: the same document was served after another
instruction and with another question.
"""

from __future__ import annotations

import sys

from benchmarks.suite.datasets import add_lengths
from benchmarks.suite.documents import case, document_of
from benchmarks.suite.endpoint import Endpoint, parser, run
from benchmarks.suite.figures import Figures
from benchmarks.suite.pairs import Pair, add_reuse, add_speedup, add_time, confirmed
from semblend.quality.texts.documents import DocumentWriter


async def main(arguments: list[str]) -> int:
    flags = parser(__doc__ or "")
    add_lengths(flags)
    flags.add_argument("--unrelated", type=int, default=2, help="prompts a miss looks through")
    chosen = flags.parse_args(arguments)
    endpoint = await Endpoint.open(chosen)
    try:
        figures = Figures(
            benchmark="ttft_by_context",
            context=endpoint.context(
                "generated prose with facts (semblend.quality.texts.documents)"
            ),
        )
        for length in endpoint.fitting(chosen.lengths):
            await _length(endpoint, figures, length)
    finally:
        await endpoint.close()
    return figures.show(as_json=chosen.json, output=chosen.output)


async def _length(endpoint: Endpoint, figures: Figures, length: int) -> None:
    flags = endpoint.flags
    writer = DocumentWriter(flags.seed + length)
    hits: list[Pair] = []
    misses: list[Pair] = []
    for sample in range(flags.samples):
        document = document_of(writer, length)
        donor = case(document, instruction=sample, fact=0)
        target = case(document, instruction=sample + 1, fact=1)

        await endpoint.empty()
        cold = await endpoint.ask(target.text, salt=endpoint.new_salt("cold"))

        await endpoint.empty()
        salt = endpoint.new_salt("miss")
        for _ in range(flags.unrelated):
            other = case(document_of(writer, length), instruction=sample + 2, fact=0)
            await endpoint.ask(other.text, salt=salt, max_tokens=1)
        await endpoint.settle()
        misses.append(Pair(cold=cold, warm=await endpoint.ask(target.text, salt=salt)))

        await endpoint.empty()
        salt = endpoint.new_salt("hit")
        await endpoint.ask(donor.text, salt=salt, max_tokens=1)
        await endpoint.settle()
        hits.append(Pair(cold=cold, warm=await endpoint.ask(target.text, salt=salt)))

    name = f"{length} tokens"
    add_time(figures, name, "cold_ttft", [p.cold for p in hits], backend_confirmed=None)
    add_time(
        figures, name, "miss_ttft", [p.warm for p in misses], backend_confirmed=confirmed(misses)
    )
    add_speedup(figures, name, "miss_speedup", misses)
    add_time(figures, name, "hit_ttft", [p.warm for p in hits], backend_confirmed=confirmed(hits))
    add_speedup(figures, name, "hit_speedup", hits, at_least=flags.min_speedup)
    add_reuse(figures, name, hits)


if __name__ == "__main__":
    sys.exit(run(main(sys.argv[1:])))
