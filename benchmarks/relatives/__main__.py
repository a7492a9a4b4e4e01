"""Relatives of the reference model: made, measured and laid side by side.

    python -m benchmarks.relatives make --minutes 4 --device cuda --writers 12
    python -m benchmarks.relatives measure --device cuda --dtype bfloat16
    python -m benchmarks.relatives table

Each starts from the reference's weights with one thing changed, and learns the reference's own
distributions over documents that the quality generator writes, until time is up or, if asked, until
`--enough` of the facts that the reference finds are found again. What is there already is not made
again.
"""

from __future__ import annotations

import argparse
import math
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from transformers import LlamaForCausalLM

from benchmarks.relatives.distilling import Lessons, distil, facts_found
from benchmarks.relatives.documents import HELD_OUT_SEED, TaughtBatch, Writing, batches, written
from benchmarks.relatives.measuring import RESULTS, Results, certified, in_the_lab, read_results
from benchmarks.relatives.side_by_side import table
from benchmarks.relatives.surgery import RELATIVES, Relative, norms, plain

MODEL = Path("models/semblend-reference-27m")
REFERENCE = "reference"
HELD_OUT_BATCHES = 12
TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "generation_config.json",
)


def make(one: Relative, flags: argparse.Namespace) -> Results:
    """Change the architecture, teach it, and write it as engines load it."""
    torch.manual_seed(flags.seed)
    jobs = [
        Writing(model=flags.model, rows=max(1, flags.batch_tokens // length), tokens=length)
        for length in flags.train_length
    ]
    held_out = _held_out(flags)
    teacher = _reference(flags)
    reference = LlamaForCausalLM.from_pretrained(flags.model, dtype=torch.float32)
    if one.name == "norms":
        samples = [batch.tokens[:1, : batch.lengths[0]] for batch in held_out[:4]]
        student = norms(reference, samples=samples)
    else:
        student = one.make(reference)
    student = student.to(flags.device)
    before, wanted = facts_found(student, held_out), facts_found(teacher, held_out)
    print(f"{one.name}: facts {before:.1%} at first, the reference finds {wanted:.1%}", flush=True)
    learned = distil(
        student,
        teacher,
        batches(jobs, writers=flags.writers),
        Lessons(
            seconds=60 * flags.minutes,
            rate=flags.rate,
            most_steps=flags.steps,
            enough=math.inf if flags.enough is None else flags.enough * wanted,
        ),
        held_out=held_out,
        say=lambda text: print(f"{one.name}: {text}", flush=True),
    )
    folder = flags.output / one.name
    plain(student).to(torch.bfloat16).save_pretrained(folder)
    for name in TOKENIZER:
        if (flags.model / name).exists():
            shutil.copy(flags.model / name, folder / name)
    found = Results(
        name=one.name, changed=one.changed, facts=learned.facts, learned=asdict(learned)
    )
    found.write(folder)
    return found


def measure(one: Relative, folder: Path, flags: argparse.Namespace) -> Results:
    """Curves, leaderboard, certificate; what a former run has is kept."""
    found = read_results(folder)
    lengths = tuple(flags.length)
    if not found.leaderboard:
        in_the_lab(
            folder,
            found,
            items=flags.items,
            lengths=lengths,
            device=flags.device,
            dtype=flags.dtype,
        )
        found.write(folder)
    if not found.certified:
        more = ["--dtype", flags.dtype, *shlex.split(flags.certify)]
        certified(folder, found, engine=one.certified_in, lengths=lengths, more=more)
        found.write(folder)
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Run one step for each relative."""
    flags = _parser().parse_args(argv)
    chosen = [one for one in RELATIVES if not flags.only or one.name in flags.only]
    if flags.step == "make":
        for one in chosen:
            if not (flags.output / one.name / RESULTS).exists():
                print(make(one, flags).learned, flush=True)
    elif flags.step == "measure":
        _bring_reference(flags)
        itself = Relative(
            name=REFERENCE, changed="nothing (Llama)", make=lambda model: model, certified_in="vllm"
        )
        for one in (itself, *chosen):
            if (flags.output / one.name / RESULTS).exists():
                print(measure(one, flags.output / one.name, flags), flush=True)
    else:
        folders = [flags.output / name for name in (REFERENCE, *(one.name for one in chosen))]
        print(table([read_results(folder) for folder in folders if (folder / RESULTS).exists()]))


def _bring_reference(flags: argparse.Namespace) -> None:
    """The reference beside its relatives, measured the same way."""
    folder = flags.output / REFERENCE
    if (folder / RESULTS).exists():
        return
    shutil.copytree(flags.model, folder, dirs_exist_ok=True)
    found = Results(name=REFERENCE, changed="nothing (Llama)")
    found.facts = facts_found(_reference(flags), _held_out(flags))
    found.write(folder)


def _reference(flags: argparse.Namespace) -> LlamaForCausalLM:
    dtype = torch.bfloat16 if flags.device == "cuda" else torch.float32
    model = LlamaForCausalLM.from_pretrained(flags.model, dtype=dtype)
    return model.to(flags.device).eval()


def _held_out(flags: argparse.Namespace) -> list[TaughtBatch]:
    job = Writing(model=flags.model, rows=6, tokens=flags.train_length[-1])
    return [written(job, HELD_OUT_SEED - at) for at in range(flags.held_out)]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks.relatives", description=__doc__)
    parser.add_argument("step", choices=("make", "measure", "table"))
    parser.add_argument("--only", action="append", default=[], help="one relative; repeatable")
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--output", type=Path, default=Path("results/relatives"))
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--seed", type=int, default=1)
    teaching = parser.add_argument_group("make")
    teaching.add_argument("--minutes", type=float, default=4.0, help="most for each relative")
    teaching.add_argument("--steps", type=int, help="most for each relative")
    teaching.add_argument("--rate", type=float, default=2e-4)
    teaching.add_argument("--enough", type=float, help="end at this share of the reference's facts")
    teaching.add_argument("--batch-tokens", type=int, default=32768)
    teaching.add_argument("--train-length", type=int, nargs="+", default=[512, 1024, 2048])
    teaching.add_argument("--held-out", type=int, default=HELD_OUT_BATCHES, help="batches of 6")
    teaching.add_argument("--writers", type=int, default=0, help="processes that write documents")
    measuring = parser.add_argument_group("measure")
    measuring.add_argument("--dtype", default="bfloat16")
    measuring.add_argument("--items", type=int, default=24, help="of each leaderboard workload")
    measuring.add_argument("--length", type=int, nargs="+", default=[1024, 2048])
    measuring.add_argument("--certify", default="", help="more flags of certify, in one string")
    return parser


if __name__ == "__main__":
    main()
