"""A toy engine and its adapter: all that "write an engine adapter" asks for, in one file.

The engine serves one request at a time from a paged cache with an exact prefix cache. Its
adapter is `ToyRequest`, `ToyScheduler` and `ToyPasses`; the rest of the work is the shared
skeleton's. See docs/write-an-adapter.md.
"""

from __future__ import annotations

import itertools
import logging
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from semblend.core.errors import DonorError
from semblend.core.namespace import Namespace
from semblend.core.plan import Plan
from semblend.core.settings import Settings
from semblend.core.tokens import TokenArray
from semblend.integration.isolation import by_salt
from semblend.integration.lora_adapter import LoraAdapter
from semblend.integration.modes import Mode
from semblend.integration.scheduler.orders import StepOrders
from semblend.integration.scheduler.port import Loan, Step
from semblend.integration.scheduler.request import Arrival
from semblend.integration.scheduler.setup import PLAN_SECONDS, CaptureRules, SchedulerSetup
from semblend.integration.scheduler.side import SchedulerSide
from semblend.integration.worker.donors import DonorRoom
from semblend.integration.worker.host_ranks import HostRanks
from semblend.integration.worker.port import BeforeLayer, KvAccess, Watch
from semblend.integration.worker.sequences import VirtualSequence
from semblend.integration.worker.side import WorkerSetup, WorkerSide
from semblend.planning.cost import CostModel
from tests.integration.contract.toy_model import LAYERS, POSITIONS, ToyCache, ToyModel

BLOCKS, STEP_TOKENS = 256, 1024


@dataclass(eq=False)
class Job:
    """A request as the toy engine has it."""

    request_id: str
    prompt: TokenArray
    salt: str | None
    hints: dict[str, Any]
    hashes: list[bytes]
    """The name of every whole block of the prompt in the prefix cache."""
    blocks: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    cached_tokens: int = 0


class ToyRequest:
    """The adapter's view of one job; see `EngineRequest`."""

    def __init__(self, job: Job, engine: ToyEngine) -> None:
        self._job, self._engine = job, engine
        self._public: list[bytes] | None = None

    def make_private(self, first_approximate_token: int) -> None:
        first = first_approximate_token // ToyCache.block_size
        self._public = list(self._job.hashes)
        self._job.hashes[first:] = [secrets.token_bytes(8) for _ in self._job.hashes[first:]]

    def undo_private(self) -> None:
        if self._public is not None:
            self._job.hashes[:] = self._public

    def keep_private(self) -> None:
        self._public = None

    def tell_cached(self, *, exact_tokens: int, reused_tokens: int) -> None:
        self._job.cached_tokens = exact_tokens + reused_tokens

    def samples(self, live: Iterable[Any]) -> int:
        return 1

    def hints(self) -> dict[str, Any]:
        return self._job.hints

    ended_normally = True

    @property
    def output_tokens(self) -> Sequence[int]:
        return self._job.outputs

    def free_blocks(self) -> None:
        self._engine.free(self._job)


class ToyScheduler:
    """The adapter's questions to the engine's scheduler; see `SchedulerPort`."""

    def __init__(self, engine: ToyEngine, namespace: Namespace) -> None:
        self._engine, self._namespace = engine, namespace

    def request_id(self, native: Job) -> str:
        return native.request_id

    def handle(self, native: Job) -> ToyRequest:
        return ToyRequest(native, self._engine)

    def arrival(self, native: Job) -> Arrival[ToyRequest]:
        return Arrival(
            request_id=native.request_id,
            handle=self.handle(native),
            tokens=native.prompt,
            namespace=self._namespace.with_parts(cache_salt=by_salt(native.salt)),
            may_reuse=native.hints.get("reuse") is not False,
            wants_capture=native.hints.get("capture"),
            policy=native.hints.get("policy"),
        )

    def blocks_of(self, request_id: str) -> tuple[int, ...]:
        return tuple(self._engine.jobs[request_id].blocks)

    def borrow(self, count: int, *, keep_free: float) -> Loan | None:
        free = self._engine.free_blocks
        if len(free) - count < keep_free * BLOCKS:
            return None
        blocks = [free.pop(0) for _ in range(count)]
        return Loan(block_ids=tuple(blocks), blocks=blocks)

    def give_back(self, loan: Loan) -> None:
        self._engine.free_blocks += loan.blocks


class ToyPasses:
    """The engine's model over virtual sequences; see `Passes`."""

    def __init__(self, model: ToyModel) -> None:
        self._model = model

    replayed = 0

    def serving(self) -> None: ...

    def prepare(self, adapter: LoraAdapter | None, *, alone: bool) -> None:
        if adapter is not None:
            raise DonorError("the toy has no adapters")

    def adapters_changed(self) -> bool:
        return False

    def run(
        self,
        sequences: Sequence[VirtualSequence],
        *,
        watch: Watch | None = None,
        before_layer: BeforeLayer | None = None,
        alone: bool = False,
    ) -> int:
        for each in sequences:
            last = watch if each is sequences[-1] else None
            self._model(
                each.tokens, each.start, each.end, each.blocks, each.shift, last, before_layer
            )
        return sum(map(len, sequences))

    def logits(self, sequence: VirtualSequence, *, last: int) -> torch.Tensor | None:
        rows: torch.Tensor = self._model(
            sequence.tokens, sequence.start, sequence.end, sequence.blocks
        )
        return rows[-last:] if last else None


class ToyEngine:
    """One request at a time; the calls to both sides come in the order the ports ask for."""

    def __init__(self, *, plan_seconds: float = PLAN_SECONDS, **settings: Any) -> None:
        self.cache = ToyCache(BLOCKS)
        self.model = ToyModel(self.cache)
        self.jobs: dict[str, Job] = {}
        self.prefixes: dict[bytes, int] = {}
        """Blocks of exact K/V by name; the toy never evicts them, it forgets all at once."""
        self.free_blocks = list(range(1, BLOCKS))
        self.rewriting: Any = None
        self._numbers = itertools.count(1)
        setup = SchedulerSetup(
            engine="toy",
            logger=logging.getLogger("semblend.toy"),
            settings=Settings.from_env(
                {},
                allow_uncertified=True,
                min_prompt_tokens=64,
                strict_prefix_boundary=False,
                **{"recompute_policy": "none", **settings},
            ),
            namespace=Namespace.of(model="toy", block_size=ToyCache.block_size),
            mode=Mode.SEGMENTED_EXPERIMENTAL,
            block_size=ToyCache.block_size,
            hole_budget=STEP_TOKENS,
            step_tokens=STEP_TOKENS,
            plan_seconds=plan_seconds,
            cost=CostModel.for_model(
                parameters=1_000_000_000, layers=LAYERS, query_heads=2, head_dim=16
            ),
            capture=CaptureRules(min_prompt_tokens=64),
        )
        self.scheduler = SchedulerSide(
            setup, ToyScheduler(self, setup.namespace), rewrite=self._rewrite
        )
        self.worker = WorkerSide(
            WorkerSetup(
                loads=True,
                nested=True,
                step_tokens=STEP_TOKENS,
                max_positions=POSITIONS,
                room=DonorRoom(host_bytes=32 << 20),
            )
        )
        self.worker.attach(self.cache, HostRanks())
        self.worker.bind(self.model, make_passes=self._passes, make_table=lambda: self.model.table)

    def _passes(self, access: KvAccess) -> ToyPasses:
        return ToyPasses(self.model)

    def _rewrite(self, plan: Plan, tokens: TokenArray) -> Plan:
        return plan if self.rewriting is None else self.rewriting(plan, tokens)

    def serve(
        self, prompt: TokenArray, *, salt: str | None, hints: dict[str, Any], new_tokens: int
    ) -> tuple[Job, dict[str, Any]]:
        """One request from its arrival to its end, and what the adapter says of it."""
        job = Job(str(next(self._numbers)), prompt, salt, hints, self._names(prompt, salt))
        self.jobs[job.request_id] = job
        self.scheduler.arrived(job)
        self._prefill(job, self._hit(job))
        self._publish(job)
        sequence = prompt
        while len(job.outputs) < new_tokens:
            rows = self.model(sequence, len(sequence) - 1, len(sequence), job.blocks)
            job.outputs.append(int(rows[-1].argmax()))
            sequence = np.append(sequence, np.int32(job.outputs[-1]))
        held, said = self.scheduler.ended(job, job.blocks)
        while held:
            held = job.request_id not in self.step(StepOrders())[1]
        self.free(job)
        return job, (said or {}).get("semblend", {})

    def _prefill(self, job: Job, exact: int) -> None:
        """Compute the prompt behind its exact prefix, but for what the adapter supplies."""
        while (supplied := self.scheduler.matched_tokens(job, exact)) is None:
            self.step(StepOrders())
        wanted = -(-(len(job.prompt) + 32) // self.cache.block_size) - len(job.blocks)
        job.blocks += [self.free_blocks.pop(0) for _ in range(wanted)]
        self.scheduler.allocated(job.request_id, lambda: job.blocks, supplied)
        computed, loaded = exact + supplied, not supplied
        while not loaded:  # asynchronous: nothing of it is used before its load has ended
            received, _, bad = self.step(StepOrders())
            loaded = job.request_id in received
            if bad:
                computed = exact
        size = len(job.prompt)
        computed = min(computed, size - 1)  # the last token is always the engine's own
        self.step(StepOrders(), (job.request_id, size), lambda: self._compute(job, computed))

    def _compute(self, job: Job, computed: int) -> None:
        self.model(job.prompt, computed, len(job.prompt), job.blocks)

    def step(
        self, orders: StepOrders, computes: tuple[str, int] | None = None, forward: Any = None
    ) -> tuple[set[str], set[str], set[int]]:
        """One step: loads that ended, requests whose blocks may go, blocks of failed loads."""
        step = Step(idle=computes is None, computes=() if computes is None else (computes,))
        self.scheduler.fill(orders, step)
        self.worker.before_overwrite(orders)
        self.worker.start_step(orders)
        if forward is not None:
            forward()
        self.worker.after_forward(orders)
        freed, received = self.worker.take_freed(), self.worker.take_received()
        bad = self.worker.take_bad_blocks()
        self.scheduler.update(self.worker.take_report(), freed)
        return received, freed, bad

    # -- the exact prefix cache --------------------------------------------------------

    def _names(self, prompt: TokenArray, salt: str | None) -> list[bytes]:
        size = self.cache.block_size
        before = repr(salt).encode()
        return [before + prompt[:end].tobytes() for end in range(size, len(prompt), size)]

    def _hit(self, job: Job) -> int:
        for name in job.hashes:
            if name not in self.prefixes:
                break
            job.blocks.append(self.prefixes[name])
        return len(job.blocks) * self.cache.block_size

    def _publish(self, job: Job) -> None:
        for name, block in zip(job.hashes, job.blocks, strict=False):
            self.prefixes.setdefault(name, block)

    def free(self, job: Job) -> None:
        """Its blocks go back, but for those the prefix cache names."""
        named = set(self.prefixes.values())
        self.free_blocks += [block for block in job.blocks if block not in named]
        self.jobs.pop(job.request_id, None)

    def forget_prefixes(self) -> None:
        """Empty the prefix cache; donors stay."""
        self.free_blocks += [b for b in set(self.prefixes.values()) if b not in self.free_blocks]
        self.prefixes.clear()

    def close(self) -> None:
        """Stop the adapter's threads."""
        self.scheduler.close()
        self.worker.close()
