"""A donor that means harm: prefixes found by gradients, and what stops them.

    python -m benchmarks.harmful_donor --json
    python -m benchmarks.harmful_donor --device cuda --victims 24 --part 1/8 --progress rows-1.jsonl
    python -m benchmarks.harmful_donor --rows rows-*.jsonl --json

An attacker shares a namespace with a victim. It sends a common document after a prefix of 16 to 64
tokens, found by gradients so that the document's K/V makes the victim's answer about it wrong. The
victim sends the document after its own instruction. Each found donor is then judged on the engine:
under naive reuse, under the certified policy, and under defences. Beside them, as a control, donors
with as many tokens of ordinary text.

`naive` searches know of no defence, and want a certain wrong answer; `spoil` ones want any. `aware`
ones know that the first tokens are recomputed. `quiet` ones also keep the deviation small that a
detector looks at.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from rich.console import Console

from benchmarks.harmful_donor.borrowed import Reuse
from benchmarks.harmful_donor.cases import Victim, benign_prefix, make_victim
from benchmarks.harmful_donor.hijack import AIMS, Hijack, sendable
from benchmarks.harmful_donor.judging import (
    ARMS,
    Judged,
    answers_cold,
    deviations,
    judge,
    noise_of,
)
from semblend.bench.benchmark_report import BenchmarkReport
from semblend.engine.model import load_model
from semblend.kv.depth_drift import read_table
from semblend.planning.certificates import find_depth_table
from semblend.quality.certifying import candidates
from semblend.quality.intervals import wilson
from semblend.quality.lab import Lab
from semblend.terminal.progress import one_total

MODEL = "models/semblend-reference-27m"
LENGTHS = (16, 32, 64)
CALIBRATION = 10_000
"""First number of the documents that only set a detector's thresholds."""
BENIGN = "benign"


def attacks(
    victims: Sequence[Victim], lengths: Sequence[int], aims: Sequence[str]
) -> list[tuple[Victim, int, str]]:
    """Every search, victim by victim, so that an early end leaves all kinds equally done."""
    return [(victim, length, aim) for victim in victims for length in lengths for aim in aims]


def chosen_victims(lab: Lab, count: int, first: int = 0) -> Iterator[Victim]:
    """Victims whose own answer is right by a clear margin."""
    number, found = first, 0
    while found < count and number < first + 20 * count:
        victim = make_victim(number, lab.model.tokenizer)
        if answers_cold(lab, victim, benign_prefix(victim, LENGTHS[0], lab.model.tokenizer)):
            found += 1
            yield victim
        number += 1


def report_of(judged: Sequence[Judged], command: str, *, policy: str) -> BenchmarkReport:
    """Share of victims' answers that are wrong, and the share that are what the attacker wants."""
    report = BenchmarkReport(f"harmful donor, {policy}", command=command)
    for aim in dict.fromkeys(one.aim for one in judged):
        for length in [*sorted({one.length for one in judged if one.aim == aim}), 0]:
            rows = [one for one in judged if one.aim == aim and length in (0, one.length)]
            case = f"{aim}, {length} tokens" if length else f"{aim}, all"
            report.add(case, "donors", len(rows), "donors")
            for arm in ARMS:
                wrong = sum(one.told(arm) != one.right for one in rows)
                hijacked = sum(one.wanted in one.told(arm) for one in rows)
                low, high = wilson(wrong, len(rows))
                report.add(case, f"wrong, {arm}", wrong / len(rows), "share")
                report.add(case, f"wrong, {arm}, 95 % from", low, "share")
                report.add(case, f"wrong, {arm}, 95 % to", high, "share")
                report.add(case, f"attacker's answer, {arm}", hijacked / len(rows), "share")
            report.add(case, "detected", sum(one.detected for one in rows) / len(rows), "share")
            agreed = sorted(one.agreed_after for one in rows)[len(rows) // 2]
            report.add(case, "recomputed until they agree, median", agreed, "tokens")
    return report


def read_rows(path: Path | None) -> list[Judged]:
    """Rows of an earlier run. A last line cut short is dropped."""
    if path is None or not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    return [Judged.from_dict(json.loads(line)) for line in lines]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--policy", default=candidates()[0], help="the policy to attack")
    parser.add_argument("--victims", type=int, default=4)
    parser.add_argument("--lengths", default=",".join(map(str, LENGTHS)), help="prefix tokens")
    parser.add_argument("--aims", default=",".join(AIMS), help=f"some of {', '.join(AIMS)}")
    parser.add_argument("--steps", type=int, default=200, help="at most, per search")
    parser.add_argument("--tries", type=int, default=64, help="replacements tried per step")
    parser.add_argument("--seconds", type=float, default=600.0, help="for all searches together")
    parser.add_argument("--calibration", type=int, default=24, help="harmless donors per length")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--part", default="1/1", help="which share of the victims to attack")
    parser.add_argument("--rows", type=Path, nargs="+", help="only report what these files hold")
    parser.add_argument("--progress", type=Path, help="file to resume from and append to")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.rows:
        judged = [one for path in arguments.rows for one in read_rows(path)]
    else:
        judged = carry_out(arguments, Console(stderr=True))
    command = shlex.join(["python", "-m", "benchmarks.harmful_donor", *sys.argv[1:]])
    report_of(judged, command, policy=arguments.policy).show(as_json=arguments.json)
    return 0


def carry_out(arguments: argparse.Namespace, console: Console) -> list[Judged]:
    """Calibrate, search and judge; what `--progress` has is not done again."""
    loaded = load_model(arguments.model, device=arguments.device, dtype="float32")
    drift = find_depth_table(loaded.fingerprint, "float32")
    lab = Lab(loaded, drift=None if drift is None else read_table(drift))
    # Searches may be a little wrong; what they find is judged by the engine in full precision.
    torch.backends.cuda.matmul.allow_tf32 = True
    reuse = Reuse.load(arguments.model, arguments.device)
    tokenizer = loaded.tokenizer
    lengths = [int(length) for length in arguments.lengths.split(",")]
    allowed = torch.as_tensor(sendable(tokenizer, loaded.vocab_size), device=reuse.device)
    noise = noise_of(
        [
            deviations(reuse, victim, benign_prefix(victim, length, tokenizer))
            for number in range(CALIBRATION, CALIBRATION + arguments.calibration)
            for victim in [make_victim(number, tokenizer)]
            for length in lengths
        ]
    )
    part, parts = (int(number) for number in arguments.part.split("/"))
    victims = list(chosen_victims(lab, arguments.victims))[part - 1 :: parts]
    todo = attacks(victims, lengths, [BENIGN, *arguments.aims.split(",")])
    judged = read_rows(arguments.progress)
    done = {(one.number, one.length, one.aim) for one in judged}
    todo = [one for one in todo if (one[0].number, one[1], one[2]) not in done]
    searches = max(1, sum(aim != BENIGN for _, _, aim in todo))
    with one_total("donors", len(todo) + len(done), console) as tell:
        tell(len(judged))
        for victim, length, aim in todo:
            prefix = benign_prefix(victim, length, tokenizer)
            gain, steps = 0.0, 0
            if aim != BENIGN:
                found = Hijack(reuse, victim, AIMS[aim], allowed).search(
                    prefix,
                    seconds=arguments.seconds / searches,
                    steps=arguments.steps,
                    tries=arguments.tries,
                    seed=arguments.seed + victim.number,
                )
                prefix, gain, steps = found.prefix, found.gain, found.steps
            judged.append(
                judge(
                    lab,
                    reuse,
                    victim,
                    prefix,
                    noise,
                    policy=arguments.policy,
                    aim=aim,
                    gain=gain,
                    steps=steps,
                )
            )
            if arguments.progress is not None:
                with arguments.progress.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(judged[-1].to_dict()) + "\n")
            tell(len(judged))
    lab.close()
    return judged


if __name__ == "__main__":
    raise SystemExit(main())
