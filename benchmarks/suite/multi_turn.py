"""Multi-turn dialogue: each prompt is the previous one, its answer and a new question.

    python -m benchmarks.suite.multi_turn --base-url http://localhost:8000 --length 2048 --turns 4

A dialogue grows at its end, so an exact prefix cache alone serves it. The table shows how much of
each turn came from there and how much was reused semantically.
"""

from __future__ import annotations

import sys

from benchmarks.suite.documents import case, document_of
from benchmarks.suite.endpoint import Endpoint, parser, run
from benchmarks.suite.figures import Figures
from benchmarks.suite.pairs import Pair, add_reuse, add_speedup, add_time, confirmed
from sembench.live.reply import Reply
from semblend.quality.texts.documents import DocumentWriter

Messages = tuple[tuple[str, str], ...]


async def main(arguments: list[str]) -> int:
    flags = parser(__doc__ or "")
    flags.add_argument("--length", type=int, default=4096, help="tokens of the document")
    flags.add_argument("--turns", type=int, default=3, help="questions in a dialogue")
    chosen = flags.parse_args(arguments)
    endpoint = await Endpoint.open(chosen)
    try:
        figures = Figures(
            benchmark="multi_turn",
            context=endpoint.context("generated dialogues over one document"),
        )
        (chosen.length,) = endpoint.fitting([chosen.length])
        await _measure(endpoint, figures)
    finally:
        await endpoint.close()
    return figures.show(as_json=chosen.json, output=chosen.output)


async def _measure(endpoint: Endpoint, figures: Figures) -> None:
    flags = endpoint.flags
    writer = DocumentWriter(flags.seed)
    by_turn: list[list[Pair]] = [[] for _ in range(flags.turns)]
    for sample in range(flags.samples):
        document = document_of(writer, flags.length)
        prompts = await _dialogue(
            endpoint,
            [
                case(document, instruction=sample, fact=turn).text
                if turn == 0
                else f"Question: {case(document, instruction=sample, fact=turn).question}"
                for turn in range(flags.turns)
            ],
        )
        # The same prompts again: warm in one cache, in order; cold in a fresh cache each.
        await endpoint.empty()
        salt = endpoint.new_salt("dialogue")
        warm: list[Reply] = []
        for messages in prompts:
            warm.append(await endpoint.ask(salt=salt, messages=messages))
            await endpoint.settle()
        for turn, messages in enumerate(prompts):
            await endpoint.empty()
            cold = await endpoint.ask(salt=endpoint.new_salt("cold"), messages=messages)
            by_turn[turn].append(Pair(cold=cold, warm=warm[turn]))
    for turn, pairs in enumerate(by_turn, start=1):
        name = f"turn {turn}"
        add_time(figures, name, "cold_ttft", [p.cold for p in pairs], backend_confirmed=None)
        add_time(
            figures, name, "warm_ttft", [p.warm for p in pairs], backend_confirmed=confirmed(pairs)
        )
        add_speedup(
            figures, name, "speedup", pairs, at_least=flags.min_speedup if turn > 1 else None
        )
        add_reuse(figures, name, pairs)


async def _dialogue(endpoint: Endpoint, questions: list[str]) -> list[Messages]:
    """The prompts of a dialogue, including the model's own answers, generated once."""
    salt = endpoint.new_salt("script")
    prompts: list[Messages] = []
    messages: Messages = ()
    for question in questions:
        messages = (*messages, ("user", question))
        prompts.append(messages)
        reply = await endpoint.ask(salt=salt, messages=messages)
        messages = (*messages, ("assistant", reply.text.strip() or "-"))
    return prompts


if __name__ == "__main__":
    sys.exit(run(main(sys.argv[1:])))
