"""Ten questions about one document: everything after the first is computed over reused K/V.

The lab computes the whole conversation over the document's K/V in one pass. That is the K/V a
chain (`core/chain.py`) holds at its last turn: each turn was computed over the same copies and over
the turns before it.
"""

from __future__ import annotations

from semblend.core.chain import MEASURED_TURNS
from semblend.quality.items import Ask, Case
from semblend.quality.texts.workloads import document_of, instructions, workload, writer_for

TEN_TURNS = "ten_turns"


@workload(TEN_TURNS)
def ten_turns(seed: int, number: int, tokens: int) -> Case:
    """Nine answered questions about a document that somebody else has read, and the tenth."""
    writer, rng = writer_for(TEN_TURNS, seed, number)
    document = document_of(writer, tokens, facts=MEASURED_TURNS + 1)
    before, now = instructions(rng)
    read, *earlier, asked = rng.sample(document.facts, len(document.facts))
    return Case(
        workload=TEN_TURNS,
        kind=TEN_TURNS,
        number=number,
        target=Ask(
            instruction=now,
            body=document.text,
            question=asked.question,
            turns=tuple((fact.question, f" {fact.value}") for fact in earlier),
        ),
        donors=(Ask(instruction=before, body=document.text, question=read.question),),
        answer=asked.value,
        leaked=tuple(fact.value for fact in (read, *earlier)),
    )
