"""vLLM with the connector in this process, with access to both. Import it after `prepare`."""

from __future__ import annotations

import gc
import itertools
import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from vllm import LLM, SamplingParams
from vllm.distributed.kv_transfer import get_kv_transfer_group

from benchmarks.engine_fuzz.comparing import Answer
from benchmarks.engine_fuzz.engine import Load, Record
from benchmarks.engine_fuzz.traffic import MOST_TOKENS, OFF, Asked
from benchmarks.vllm_connector import llm_options
from benchmarks.vllm_fuzz.answers import answer_of
from benchmarks.vllm_runners import Scheduling, engine_options, on_gpu
from semblend.core import faults
from semblend.core.plan import Plan
from semblend.core.tokens import TokenArray
from semblend.kv.layout import block_slots

_HOST_PROMPTS = 6
"""How many of the longest prompts fit in the donor memory."""
TOP = 8
"""Tokens whose log-probabilities a reference run keeps per position."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """One engine."""

    model: Path
    mode: str
    policy: str | None
    scheduling: Scheduling
    step_tokens: int
    kv_tokens: int
    longest: int
    running: int
    donor_folder: Path

    @property
    def dtype(self) -> str:
        """bfloat16 on a GPU, float32 on a CPU."""
        return "bfloat16" if on_gpu() else "float32"

    @property
    def token_bytes(self) -> int:
        """K/V bytes per token."""
        config = json.loads((self.model / "config.json").read_text())
        heads = config.get("num_key_value_heads", config["num_attention_heads"])
        width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        size = 2 if self.dtype == "bfloat16" else 4
        return int(config["num_hidden_layers"] * 2 * heads * width * size)


class VllmFuzzEngine:
    """One LLM."""

    def __init__(self, options: EngineOptions) -> None:
        extra: dict[str, Any] = {
            "mode": options.mode,
            "min_prompt_tokens": 64,
            # Little memory, so that donors are pushed to disk and off it while in use.
            "host_donor_bytes": _HOST_PROMPTS * options.longest * options.token_bytes,
            "disk_donor_bytes": 5 * _HOST_PROMPTS * options.longest * options.token_bytes,
            "capture_queue": 32,
            "donor_folder": str(options.donor_folder),
        }
        if options.policy is not None:
            extra["recompute_policy"] = options.policy
        device: dict[str, Any] = {"gpu_memory_utilization": 0.2}
        if not on_gpu():
            device = {"enforce_eager": True, "block_size": 32}
        self._llm = LLM(
            model=str(options.model),
            dtype=options.dtype,
            max_model_len=options.longest + MOST_TOKENS * 2,
            max_num_batched_tokens=options.step_tokens,
            max_num_seqs=options.running,
            scheduler_reserve_full_isl=False,  # prompts compete for blocks, so more is preempted
            kv_cache_memory_bytes=options.kv_tokens * options.token_bytes,
            **llm_options(
                extra, connector="RewritingConnector", module="benchmarks.vllm_rewriting"
            ),
            **device,
            **engine_options(options.scheduling),
        )
        self.tokenizer: Any = self._llm.get_tokenizer()
        self._engine: Any = self._llm.llm_engine
        self.core: Any = self._engine.engine_core.engine_core
        self.connector: Any = self.core.scheduler.connector
        self.side: Any = self.connector.scheduler_side
        self.worker: Any = get_kv_transfer_group().worker_side
        self.steps = 0
        self.largest_batch = 0
        self.split_prompts: set[str] = set()
        """Requests whose prompt was computed in more than one step."""
        self.donors: dict[str, TokenArray] = {}
        """Tokens of every donor there ever was."""
        self.givers: dict[str, str | None] = {}
        """Salt of the request that became each donor."""
        self._records: dict[str, Record] = {}
        self._salts = itertools.count()
        self._watch()
        self._free = self._free_blocks()

    # -- traffic -------------------------------------------------------------------------

    def add(self, asked: Asked) -> Record:
        record = Record(asked=asked, arrived=self.steps)
        self._records[asked.request_id] = record
        self._engine.add_request(
            asked.request_id, prompt(asked.tokens, asked.salt), sampling(asked.most, asked.hints)
        )
        return record

    def abort(self, record: Record) -> None:
        """Abort a request; what it answered so far stays."""
        record.aborted = True
        self._engine.abort_request([record.asked.request_id])

    def step(self) -> int:
        """Run one step; return how many requests produced output."""
        self.steps += 1
        outputs = self._engine.step()
        for output in outputs:
            record = self._records.get(output.request_id)
            if record is None:
                continue
            record.answer = tuple(output.outputs[0].token_ids)
            if output.finished:
                record.finished = True
                record.said = (output.kv_transfer_params or {}).get("semblend", record.said)
        return len(outputs)

    def drain(self, most: int = 20_000) -> bool:
        """Step until captures and samples have ended; False if something never ends."""
        for _ in range(most):
            if not self.busy:
                return True
            self.core.step_fn()
        return False

    @property
    def busy(self) -> bool:
        """Whether the engine has anything to do."""
        return bool(
            self.core.scheduler.has_requests()
            or self.core.batch_queue
            or self.side.has_pending_work
        )

    # -- references ----------------------------------------------------------------------

    def fresh_salt(self) -> str:
        """An unused salt."""
        return f"reference-{next(self._salts)}"

    def run_all(
        self,
        prompts: Sequence[TokenArray],
        salts: Sequence[str],
        hints: dict[str, Any],
        most: int | Sequence[int] = MOST_TOKENS,
    ) -> list[Answer]:
        """Run prompts in one batch, to their ends."""
        lengths = [most] * len(prompts) if isinstance(most, int) else most
        inputs = [prompt(tokens, salt) for tokens, salt in zip(prompts, salts, strict=True)]
        plans = [sampling(length, hints, logprobs=TOP) for length in lengths]
        outputs = self._llm.generate(inputs, plans, use_tqdm=False)
        if not self.drain():
            raise RuntimeError("a reference run never ends")
        return [answer_of(output) for output in outputs]

    def rewrite_plans(self, rewrite: Callable[[Plan, TokenArray], Plan] | None) -> None:
        """What every plan passes through from now on."""
        self.connector.rewriting = rewrite

    def planted(self, spec: str, *, seed: int) -> AbstractContextManager[faults.Planted]:
        """Plant faults; the engine runs in this process."""
        return faults.planted(spec, seed=seed)

    def make_room(self) -> None:
        """Donors lie in memory of their own."""

    def push_to_disk(self, tokens: TokenArray) -> None:
        """Store so many others that the donor memory holds nothing else."""
        for number in range(_HOST_PROMPTS):
            other = np.roll(tokens, number)
            self.run_all([other], [self.fresh_salt()], {"reuse": False}, 1)

    def forget_prefixes(self) -> bool:
        """Empty vLLM's own prefix cache; False if blocks are still in use."""
        return bool(self._llm.reset_prefix_cache())

    # -- access --------------------------------------------------------------------------

    def _free_blocks(self) -> int:
        return int(self.core.scheduler.kv_cache_manager.block_pool.get_num_free_blocks())

    def left_behind(self) -> dict[str, int]:
        """What must be empty once every request has ended; workers learn of it a step later."""
        self.run_all([np.arange(10, 40, dtype=np.int32)], [self.fresh_salt()], OFF, 1)
        in_use = 0 if self.forget_prefixes() else 1
        side, worker = self.side, self.worker
        tiers = [] if worker.donors is None else worker.donors.tiers.stats()
        captures = worker.captures
        pipeline = side.planner.pipeline
        held = [] if worker.donors is None else worker.donors.ids()
        in_both = sum(pipeline.holds(donor_id) for donor_id in held)
        return {
            "blocks": abs(self._free - self._free_blocks()),
            "blocks in use, says vLLM": in_use,
            "requests the connector still knows": len(side.requests),
            "loads under way": 0 if worker.loads is None else len(worker.loads),
            "requests whose blocks are held": int(bool(side._held)),
            "captures under way": 0 if captures is None else len(+captures._pending),
            "leases": sum(tier.leased for tier in tiers),
            "requests open in the ledger": pipeline.ledger.totals().open_requests,
            "donors that only the scheduler knows": pipeline.stats().donors - in_both,
            "donors that only the worker holds": len(held) - in_both,
        }

    def spoil(self, record: Record) -> bool:
        """Overwrite the K/V of a running request with a load, as a wrong load would."""
        states = self.side.requests.values()
        ours = record.asked.request_id
        state = next((s for s in states if _outer(s.request_id) == ours), None)
        if state is None or state.stage.value != "loaded" or not record.answer:
            return False
        (blocks,) = self.core.scheduler.kv_cache_manager.get_block_ids(state.request_id)
        access = self.worker.access
        sizes = {"block_size": access.block_size, "blocks": access.blocks}
        slots = torch.from_numpy(block_slots(blocks, 0, len(record.asked.tokens), **sizes))
        slots = slots.to(access.device)
        with torch.inference_mode():
            kv = access.read(blocks, 0, len(record.asked.tokens))
            for layer in range(access.layer_count):
                # Use other tokens' values: rotating keys with them would change nothing.
                access.write(layer, kv[layer, 0], kv[layer, 1].flip(0), slots)
        return True

    def close(self) -> None:
        self._engine.engine_core.shutdown()
        gc.collect()

    def _watch(self) -> None:
        """Intercept the calls that show what a request was given and which became donors."""
        self.connector.request_finished_all_groups = self._finishing(
            self.connector.request_finished_all_groups
        )
        self.connector.build_connector_meta = self._building(self.connector.build_connector_meta)
        pipeline = self.side.planner.pipeline
        pipeline.register_donor = self._registering(pipeline.register_donor)

    def _finishing(self, call: Any) -> Any:
        def finished(request: Any, *more: Any) -> Any:
            state = self.side.requests.get(request.request_id)
            answer = call(request, *more)
            record = self._records.get(_outer(request.request_id))
            if record is not None:
                record.preemptions = int(request.num_preemptions)
                record.said = (answer[1] or {}).get("semblend", {})
                if state is not None:
                    record.tainted = state.tainted
                    record.loads = [] if state.plan is None else [Load(plan=state.plan)]
            return answer

        return finished

    def _building(self, call: Any) -> Any:
        def build(scheduled: Any) -> Any:
            self.largest_batch = max(self.largest_batch, len(scheduled.num_scheduled_tokens))
            running = scheduled.scheduled_cached_reqs
            for request_id in itertools.chain(
                (new.req_id for new in scheduled.scheduled_new_reqs), running.req_ids
            ):
                request = self.core.scheduler.requests.get(request_id)
                tokens = scheduled.num_scheduled_tokens[request_id]
                if request is not None and request.num_computed_tokens + tokens < len(
                    request.prompt_token_ids or ()
                ):
                    self.split_prompts.add(request_id)
            return call(scheduled)

        return build

    def _registering(self, call: Any) -> Any:
        def register(donor_id: str, tokens: TokenArray, *more: Any, **named: Any) -> Any:
            self.donors[donor_id] = tokens
            record = self._records.get(_outer(donor_id.rpartition(".")[0]))
            if record is not None:
                self.givers[donor_id] = record.asked.salt
            return call(donor_id, tokens, *more, **named)

        return register


def prompt(tokens: TokenArray, salt: str | None) -> dict[str, Any]:
    """A prompt in vLLM's format."""
    said: dict[str, Any] = {"prompt_token_ids": tokens.tolist()}
    if salt is not None:
        said["cache_salt"] = salt
    return said


def sampling(most: int, hints: dict[str, Any], **more: Any) -> SamplingParams:
    """Greedy, to exactly the requested length: an end of text would hide what follows."""
    return SamplingParams(
        max_tokens=most,
        temperature=0.0,
        ignore_eos=True,
        detokenize=False,
        extra_args={"kv_transfer_params": {"semblend": hints}},
        **more,
    )


def _outer(request_id: str) -> str:
    """Our own id of a request; vLLM's ends in random letters."""
    return request_id.rpartition("-")[0]
