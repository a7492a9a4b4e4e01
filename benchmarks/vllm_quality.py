"""Fact retrieval in real vLLM: answers with reuse beside cold ones, on the bundled model.

    .venv-vllm/bin/python -m benchmarks.vllm_quality [--items 20] [--policy SPEC] [--json]

Without --policy the connector runs in mode `segmented`, under the model's certificate; with
one it runs uncertified. Every item is a prompt that the engine has read in part behind another
instruction (moved text) or with other facts (edited text); greedy answers, fp32, CPU.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from semblend.cli.benchmark_report import BenchmarkReport

REFERENCE = Path(__file__).parents[1] / "models" / "semblend-reference-27m"
MOVED = ("instruction", "reordered", "composed")
EDITED = ("edited_renamed", "edited_exchanged", "edited_numbers")
DROP_POINTS = 1.0
"""How far accuracy with reuse may lie below cold."""


@dataclass(slots=True)
class Score:
    """Answers of one workload."""

    items: int = 0
    cold: int = 0
    warm: int = 0
    leaked: int = 0
    reused: int = 0
    """Items for which the engine confirmed reuse."""

    def share(self, name: str) -> float:
        """One of the counts in percent."""
        return 100.0 * int(getattr(self, name)) / max(1, self.items)


class Engine:
    """vLLM with the connector, in this process."""

    def __init__(self, policy: str | None) -> None:
        from vllm import LLM
        from vllm.config import KVTransferConfig

        extra: dict[str, Any] = {"mode": "segmented", "min_prompt_tokens": 64}
        if policy is not None:
            extra.update(mode="segmented_experimental", recompute_policy=policy)
        self._llm = LLM(
            model=str(REFERENCE),
            dtype="float32",
            enforce_eager=True,
            kv_cache_memory_bytes=512 << 20,
            worker_cls="semblend.integration.vllm.worker.SemBlendWorker",
            kv_transfer_config=KVTransferConfig(
                kv_connector="SemBlendConnectorV1",
                kv_connector_module_path="semblend.integration.vllm.connector_v1",
                kv_role="kv_both",
                kv_load_failure_policy="recompute",
                kv_connector_extra_config=extra,
            ),
        )
        self.tokenizer: Any = self._llm.get_tokenizer()
        self._core: Any = self._llm.llm_engine.engine_core.engine_core
        side = self._core.scheduler.connector.scheduler_side
        if policy is None and not side.setup.certified:
            raise SystemExit(f"mode segmented: {side.setup.standing.detail}; give --policy")
        self.policy = policy or side.setup.standing.policy

    def answer(
        self, tokens: npt.NDArray[np.int32], salt: str, hints: dict[str, Any], most: int = 24
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


def measure(engine: Engine, workload: str, items: int, length: int, seed: int) -> Score:
    """One workload; every item has a salt of its own, so that items cannot help each other."""
    from semblend.quality.measure import states
    from semblend.quality.suite import Cell, items_of

    score = Score()
    cell = Cell(workload=workload, items=items, specs=(), lengths=(length,))
    for item in items_of([cell], seed, engine.tokenizer):
        salt, case = item.case.case_id, item.case
        cold, _ = engine.answer(item.tokens, f"{salt}:cold", {"reuse": False, "capture": False})
        for donor in item.donors:
            engine.answer(donor, salt, {"reuse": False, "capture": True}, most=1)
        warm, said = engine.answer(item.tokens, salt, {"capture": False})
        score.items += 1
        score.cold += states(cold, (case.answer,))
        score.warm += states(warm, (case.answer,))
        score.leaked += states(warm, case.leaked) and not states(cold, case.leaked)
        score.reused += said.get("outcome") == "materialised"
    return score


def main() -> None:
    """Measure, print, and fail if a target is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--items", type=int, default=20, help="items of each workload")
    parser.add_argument("--length", type=int, default=1024, help="prompt tokens aimed at")
    parser.add_argument("--policy", help="run uncertified, with this recompute policy")
    parser.add_argument("--seed", type=int, default=20261115)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    os.environ.update(
        {
            "HF_HUB_OFFLINE": "1",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_LOGGING_LEVEL": "ERROR",
            "VLLM_LOGGING_STREAM": "ext://sys.stderr",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        }
    )
    report = BenchmarkReport(
        benchmark="vllm_quality",
        command=" ".join(["python -m benchmarks.vllm_quality", *sys.argv[1:]]),
    )
    engine = Engine(arguments.policy)
    for workload in (*MOVED, *EDITED):
        score = measure(engine, workload, arguments.items, arguments.length, arguments.seed)
        case = f"{workload}, {engine.policy}"
        report.add(case, "exact answers, cold", score.share("cold"), "%")
        report.add(case, "exact answers, reuse", score.share("warm"), "%")
        drop = score.share("cold") - score.share("warm")
        report.add(case, "drop", drop, "points", at_most=DROP_POINTS)
        report.add(case, "donor's facts leaked", score.share("leaked"), "%", at_most=0.0)
        report.add(case, "items reused", score.share("reused"), "%")
    report.show(as_json=arguments.json)
    if report.failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
