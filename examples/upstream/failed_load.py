"""vLLM without SemBlend: a connector that claims tokens, loads nothing, and reports it.

    python -m examples.upstream.failed_load --model MODEL --runner v2 --claim now

`--claim now` answers `(tokens, False)`, `--claim later` `(tokens, True)`. Nothing is loaded in
either case, so with `kv_load_failure_policy="recompute"` every answer must equal a run without a
claim. Run it from the repository's root: `benchmarks.vllm_runners` makes the V2 runner and
asynchronous scheduling available on a CPU. docs/upstream.md describes the results.
"""

from __future__ import annotations

import argparse
import random
from dataclasses import dataclass, field
from typing import Any

from benchmarks.vllm_runners import Runner, Scheduling, engine_options, prepare

QUESTIONS = 5


def connector_class(later: bool, block: int) -> type:
    """The connector, created once vLLM may be imported."""
    from vllm.distributed.kv_transfer.kv_connector.v1.base import (
        KVConnectorBase_V1,
        KVConnectorMetadata,
    )

    @dataclass
    class Loads(KVConnectorMetadata):
        loads: dict[str, tuple[list[int], int]] = field(default_factory=dict)

    class FailingConnector(KVConnectorBase_V1):
        """Claims the whole blocks of prompts whose salt says so; every load fails."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self.orders: dict[str, tuple[list[int], int]] = {}
            self.claimed: set[str] = set()
            self.ended: set[str] = set()
            self.failed: set[int] = set()

        def get_num_new_matched_tokens(self, request: Any, computed: int) -> tuple[int, bool]:
            if "claim" not in (request.cache_salt or "") or request.request_id in self.claimed:
                return 0, False
            tokens = (request.num_prompt_tokens - 1) // block * block - computed
            return (tokens, later) if tokens > 0 else (0, False)

        def update_state_after_alloc(self, request: Any, blocks: Any, tokens: int) -> None:
            if tokens:
                self.orders[request.request_id] = (blocks.get_block_ids()[0], tokens)
                self.claimed.add(request.request_id)

        def build_connector_meta(self, scheduled: Any) -> Loads:
            orders, self.orders = self.orders, {}
            return Loads(loads=orders)

        def start_load_kv(self, context: Any, **options: Any) -> None:
            for request, (blocks, tokens) in self._get_connector_metadata().loads.items():
                self.failed |= set(blocks[: -(-tokens // block)])
                if later:
                    self.ended.add(request)

        def get_finished(self, finished: set[str]) -> tuple[None, set[str] | None]:
            ended, self.ended = self.ended, set()
            return None, ended or None

        def get_block_ids_with_load_errors(self) -> set[int]:
            failed, self.failed = self.failed, set()
            return failed

        def wait_for_layer_load(self, name: str) -> None:
            """Nothing is in flight."""

        def save_kv_layer(self, *arguments: Any, **options: Any) -> None:
            """Nothing is saved."""

        def wait_for_save(self) -> None:
            """Nothing is saved."""

    return FailingConnector


def question(number: int) -> str:
    """A list of codes and an unrelated question; about 900 tokens."""
    draw = random.Random(number)
    names = (f"{draw.choice(('Abel', 'Bora', 'Cyr', 'Dax'))}{index}" for index in range(60))
    facts = "".join(f"The secret code of {n} is {draw.randint(1000, 9999)}. " for n in names)
    return facts + "The secret code of"


def main() -> None:
    """Ask each question without a claim and with a failing one; count what differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="models/semblend-reference-27m")
    parser.add_argument("--runner", type=Runner, choices=list(Runner), default=Runner.V2)
    parser.add_argument(
        "--scheduling", type=Scheduling, choices=list(Scheduling), default=Scheduling.SYNC
    )
    parser.add_argument("--claim", choices=("now", "later"), default="now")
    choice = parser.parse_args()
    prepare(choice.runner, choice.scheduling)

    from vllm import LLM, SamplingParams
    from vllm.config import KVTransferConfig
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    block = 32
    connector = connector_class(choice.claim == "later", block)
    KVConnectorFactory._registry["FailingConnector"] = lambda: connector
    llm = LLM(
        model=choice.model,
        dtype="float32",
        enforce_eager=True,
        block_size=block,
        kv_cache_memory_bytes=256 << 20,
        kv_transfer_config=KVTransferConfig(
            kv_connector="FailingConnector",
            kv_role="kv_both",
            kv_load_failure_policy="recompute",
        ),
        **engine_options(choice.scheduling),
    )
    sampling, wrong = SamplingParams(max_tokens=12, temperature=0.0), 0
    for number in range(QUESTIONS):
        prompts = [
            {"prompt": question(number), "cache_salt": f"{salt}{number}"}
            for salt in ("cold", "claim")
        ]
        cold, claimed = (
            llm.generate([prompt], sampling, use_tqdm=False)[0].outputs[0].text
            for prompt in prompts
        )
        wrong += cold != claimed
    print(
        f"runner {choice.runner.value}, scheduling {choice.scheduling.value}, "
        f"claimed {choice.claim}: {wrong} of {QUESTIONS} answers wrong"
    )


if __name__ == "__main__":
    main()
