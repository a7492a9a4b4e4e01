"""Fact retrieval in real vLLM: answers with reuse next to cold ones, on the bundled model.

    .venv-vllm/bin/python -m benchmarks.vllm_quality --records answers.jsonl --minutes 5
    .venv-vllm/bin/python -m benchmarks.vllm_quality --policy SPEC --workloads composed

Without --policy the connector runs in mode `segmented`, under the model's certificate and with
its policy; with --policy it runs uncertified. Every item is a prompt that the engine has partly
read before, after another instruction (moved text) or with other facts (edited text). Answers are
greedy, fp32, on a CPU, each item with its own salt. Naive reuse (policy `none`) also answers some
of the items: it must fail what the certificate passes. With --records answers are kept in a file,
and the next run continues after them.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.vllm_answers import (
    MATERIALISED,
    Answered,
    AnswerFile,
    report_control,
    report_policy,
)
from benchmarks.vllm_connector import llm_options
from semblend.bench.benchmark_report import BenchmarkReport
from semblend.quality.items import Item, to_item
from semblend.quality.measure import states
from semblend.quality.suite import Cell

REFERENCE = Path(__file__).parents[1] / "models" / "semblend-reference-27m"
MOVED = ("instruction", "reordered", "composed", "gathered")
EDITED = ("edited_renamed", "edited_exchanged", "edited_numbers", "edited_polarity")
CONTROL = ("edited_renamed", "edited_exchanged", "edited_polarity")
"""Where naive reuse is known to state the donor's facts."""
LENGTHS = (1024, 2048, 1024, 4096)
"""In turn. Four, because the depth of edited facts cycles through three."""
ANSWER_TOKENS = 16
NAIVE = "none"


class Engine:
    """vLLM with the connector, in this process."""

    def __init__(self, policy: str | None) -> None:
        from vllm import LLM

        extra: dict[str, Any] = {"mode": "segmented", "min_prompt_tokens": 64}
        if policy is not None:
            extra.update(mode="segmented_experimental", recompute_policy=policy)
        self._llm = LLM(
            model=str(REFERENCE),
            dtype="float32",
            enforce_eager=True,
            kv_cache_memory_bytes=512 << 20,
            **llm_options(extra),
        )
        self.tokenizer: Any = self._llm.get_tokenizer()
        self._core: Any = self._llm.llm_engine.engine_core.engine_core
        side = self._core.scheduler.connector.scheduler_side
        if policy is None and not side.setup.certified:
            raise SystemExit(f"mode segmented: {side.setup.standing.detail}; pass --policy")
        self.policy: str = policy or side.setup.standing.policy

    def ask(
        self, tokens: npt.NDArray[np.int32], salt: str, hints: dict[str, Any], most: int
    ) -> tuple[str, dict[str, Any]]:
        """The answer's text and what was reused; waits for captures."""
        from vllm import SamplingParams

        sampling = SamplingParams(
            max_tokens=most,
            temperature=0.0,
            extra_args={"kv_transfer_params": {"semblend": hints}},
        )
        prompt: Any = {"prompt_token_ids": tokens.tolist(), "cache_salt": salt}
        (output,) = self._llm.generate([prompt], sampling, use_tqdm=False)
        while self._core.scheduler.has_requests():
            self._core.step_fn()
        return output.outputs[0].text, (output.kv_transfer_params or {}).get("semblend", {})

    def answer(
        self, item: Item, workload: str, *, seed: int, length: int, cold: str | None
    ) -> Answered:
        """Answer cold, then warm after its donors; salts separate the two and all items."""
        case = item.case
        if cold is None:
            off = {"reuse": False, "capture": False}
            cold, _ = self.ask(item.tokens, f"{case.case_id}:cold", off, ANSWER_TOKENS)
        for donor in item.donors:
            self.ask(donor, case.case_id, {"reuse": False, "capture": True}, 1)
        warm, said = self.ask(item.tokens, case.case_id, {"capture": False}, ANSWER_TOKENS)
        return Answered(
            case=case.case_id,
            workload=workload,
            seed=seed,
            length=length,
            policy=self.policy,
            certified=bool(said.get("certified")),
            outcome=str(said.get("outcome")),
            prompt_tokens=len(item.tokens),
            reused_tokens=int(said.get("reused_tokens", 0)),
            recomputed_tokens=int(said.get("recomputed_tokens", 0)),
            expected=case.answer,
            cold=cold,
            warm=warm,
            cold_right=states(cold, (case.answer,)),
            warm_right=states(warm, (case.answer,)),
            leaked=states(warm, case.leaked) and not states(cold, case.leaked),
        )

    def close(self) -> None:
        from vllm.distributed import cleanup_dist_env_and_memory
        from vllm.distributed.kv_transfer import ensure_kv_transfer_shutdown

        self._llm.llm_engine.engine_core.shutdown()
        del self._llm, self._core
        ensure_kv_transfer_shutdown()
        cleanup_dist_env_and_memory()
        gc.collect()


def turns(workloads: list[str], items: int, lengths: tuple[int, ...]) -> Iterator[tuple[Cell, int]]:
    """One item of every workload, then the next, so that a run that stops early is balanced."""
    for number in range(items):
        for name in workloads:
            length = lengths[number % len(lengths)]
            cell = Cell(workload=name, items=1, specs=(), lengths=(length,), first=number)
            yield cell, length


def held(answers: AnswerFile, turn: tuple[Cell, int], seed: int, policy: str) -> bool:
    """Whether this was asked in an earlier run."""
    cell, length = turn
    (case,) = cell.cases(seed)
    return answers.holds(case.case_id, seed, length, policy)


def measure(
    policy: str | None,
    answers: AnswerFile,
    todo: list[tuple[Cell, int]],
    seed: int,
    until: float,
) -> str:
    """Answer what the file lacks until time is up; return the policy's spec."""
    engine = Engine(policy)
    try:
        for cell, length in todo:
            if time.monotonic() > until:
                break
            if held(answers, (cell, length), seed, engine.policy):
                continue
            (case,) = cell.cases(seed)
            item = to_item(case, engine.tokenizer)
            cold = answers.cold(case.case_id, seed, length)
            answer = engine.answer(item, cell.workload, seed=seed, length=length, cold=cold)
            answers.add(answer)
        return engine.policy
    finally:
        engine.close()


def show(
    answers: AnswerFile, policy: str, arguments: argparse.Namespace, report: BenchmarkReport
) -> None:
    """Rows of the policy and its control; answers to other seeds and policies are left out."""
    mine = [a for a in answers.answers if a.seed == arguments.seed]
    found = [a for a in mine if a.policy == policy]
    if found:
        report_policy(report, found, judged=True)
        wrongly = sum(a.outcome == MATERIALISED and not a.certified for a in found)
        if arguments.policy is None:
            report.add("all", "reuse without a certificate", wrongly, "answers", at_most=0.0)
    naive = [a for a in mine if a.policy == NAIVE]
    if naive and policy != NAIVE:
        report_control(report, naive)


def main() -> None:
    """Measure, print, and fail if a target is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--items", type=int, default=60, help="items per workload")
    parser.add_argument("--control-items", type=int, default=12, help="how many use naive reuse")
    parser.add_argument("--workloads", nargs="+", default=[*MOVED, *EDITED])
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS))
    parser.add_argument("--policy", help="run uncertified, with this recompute policy")
    parser.add_argument("--seed", type=int, default=20261115)
    parser.add_argument("--records", type=Path, help="file to keep answers in")
    parser.add_argument("--minutes", type=float, default=1e6, help="stop after this many")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    os.environ.update(
        {
            "HF_HUB_OFFLINE": "1",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_NO_USAGE_STATS": "1",
            "SEMBLEND_MEASURE_SPEED": "0",
            "VLLM_LOGGING_LEVEL": "ERROR",
            "VLLM_LOGGING_STREAM": "ext://sys.stderr",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        }
    )
    until = time.monotonic() + 60.0 * arguments.minutes
    answers, lengths = AnswerFile(arguments.records), tuple(arguments.lengths)
    control = [name for name in arguments.workloads if name in CONTROL]
    beside = list(turns(control, min(arguments.items, arguments.control_items), lengths))
    beside = [turn for turn in beside if not held(answers, turn, arguments.seed, NAIVE)]
    if beside and arguments.policy != NAIVE:
        measure(NAIVE, answers, beside, arguments.seed, until)
    todo = list(turns(arguments.workloads, arguments.items, lengths))
    policy = measure(arguments.policy, answers, todo, arguments.seed, until)
    report = BenchmarkReport(
        benchmark="vllm_quality",
        command=" ".join(["python -m benchmarks.vllm_quality", *sys.argv[1:]]),
    )
    show(answers, policy, arguments, report)
    report.show(as_json=arguments.json)
    if report.failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
