"""SGLang's scheduler with the backend in a process of its own, driven through the tests' pipe."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.integration.sglang import probes
from tests.integration.sglang.engines import DEVICE, Engine

from benchmarks.engine_fuzz.comparing import Answer
from benchmarks.engine_fuzz.engine import Load, Record
from benchmarks.engine_fuzz.traffic import MOST_TOKENS, Asked
from benchmarks.sglang_fuzz import watching
from semblend.core.faults import FaultPoint
from semblend.core.plan import Plan
from semblend.core.tokens import TokenArray

_WAIT_S = 0.05
"""How long a step waits for output."""
_PATIENCE_S = 120.0
_RETRACTING = 12
"""Requests that arrive before SGLang's own switch for retracting is turned on, or off again."""
TOP = 8
"""Tokens whose log-probabilities a reference run keeps per position."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """One engine."""

    model: Path
    mode: str
    policy: str | None
    step_tokens: int
    kv_tokens: int
    longest: int
    running: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fired:
    """How often each point failed, known once nothing is planted any more."""

    fired: dict[FaultPoint, int]


@dataclass(slots=True)
class _Said:
    """What came back of a request."""

    tokens: list[int] = field(default_factory=list)
    likely: list[dict[int, float]] = field(default_factory=list)
    report: dict[str, Any] = field(default_factory=dict)
    ended: bool = False


class SglangFuzzEngine:
    """One scheduler."""

    def __init__(self, options: EngineOptions) -> None:
        from transformers import AutoTokenizer

        config: dict[str, Any] = {"mode": options.mode, "failures_before_off": 1_000_000}
        if options.policy is not None:
            config["recompute_policy"] = options.policy
        self._engine = Engine(
            "reference",
            server={
                "model_path": str(options.model),
                "dtype": "float32" if DEVICE == "cpu" else "bfloat16",
                "context_length": options.longest + MOST_TOKENS * 2,
                "max_total_tokens": options.kv_tokens,
                "max_running_requests": options.running,
                "chunked_prefill_size": options.step_tokens,
                "skip_tokenizer_init": False,
            },
            **config,
        )
        self._engine.call(watching.watch)
        self.tokenizer: Any = AutoTokenizer.from_pretrained(options.model)
        self.steps = 0
        self.largest_batch = 0
        self.split_prompts: set[str] = set()
        self.donors: dict[str, TokenArray] = {}
        self.givers: dict[str, str | None] = {}
        self._said: dict[str, _Said] = {}
        self._records: dict[str, Record] = {}
        self._unsettled: list[str] = []
        self._salts = itertools.count()

    # -- traffic -------------------------------------------------------------------------

    def add(self, asked: Asked) -> Record:
        """Send a request; SGLang retracts what runs for a while, and for a while does not."""
        if asked.number % _RETRACTING == 0:
            self._engine.call(probes.retract_now, asked.number // _RETRACTING % 2 == 1)
        rid = self._send(asked.tokens, asked.salt, asked.hints, asked.most)
        record = self._records[rid] = Record(asked=asked, arrived=self.steps)
        self._unsettled.append(rid)
        return record

    def abort(self, record: Record) -> None:
        """Abort a request; what it answered so far stays."""
        record.aborted = True
        self._engine.abort(self._rid(record))

    def step(self) -> int:
        """Take what the scheduler has said since; return how many outputs that were."""
        self.steps += 1
        outputs = 0
        message = self._engine.next_message(_WAIT_S)
        while message is not None:
            outputs += self._take(*message)
            message = self._engine.next_message(0.0)
        return outputs

    def drain(self) -> bool:
        """Wait until nothing runs; False if something never ends."""
        self._engine.call(probes.retract_now, False)
        until = time.monotonic() + _PATIENCE_S
        while not self._engine.call(watching.is_idle):
            self.step()
            if time.monotonic() > until:
                return False
        self.step()
        for rid in self._unsettled:
            self._settle(self._records[rid], rid)
        self._unsettled.clear()
        self._learn()
        return True

    @contextmanager
    def planted(self, spec: str, *, seed: int) -> Iterator[Fired]:
        """Plant faults in the scheduler's process."""
        with self._engine.planted(spec, seed=seed) as fired:
            yield Fired(fired=fired)

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
        rids = [
            self._send(tokens, salt, hints, length, top_logprobs_num=TOP)
            for tokens, salt, length in zip(prompts, salts, lengths, strict=True)
        ]
        if not self.drain() or not all(self._said[rid].ended for rid in rids):
            raise RuntimeError("a reference run never ends")
        found = [self._said.pop(rid) for rid in rids]
        return [
            Answer(tokens=tuple(said.tokens), likely=tuple(said.likely), said=said.report)
            for said in found
        ]

    def rewrite_plans(self, rewrite: Callable[[Plan, TokenArray], Plan] | None) -> None:
        """What every plan passes through from now on."""
        self._engine.call(probes.rewrite_with, rewrite)

    def make_room(self) -> None:
        """Donors lie in the tree, and the pool is small."""
        self._engine.flush()

    def forget_prefixes(self) -> bool:
        """Nothing: donors do not outlive the tree."""
        return True

    def push_to_disk(self, tokens: TokenArray) -> None:
        """Nothing: donors lie in the tree."""

    # -- access --------------------------------------------------------------------------

    def left_behind(self) -> dict[str, int]:
        """What must be empty once every request has ended; SGLang's own checks are among it."""
        leaks = self._engine.call(probes.idle_checks)
        self._engine.flush()
        return {"leaks, says SGLang": len(leaks), **self._engine.call(watching.left)}

    def spoil(self, record: Record) -> bool:
        """Overwrite the K/V of a running request with a load, as a wrong load would."""
        return bool(record.answer) and self._engine.call(watching.spoil, self._rid(record))

    def close(self) -> None:
        """End the scheduler."""
        self._engine.close()

    # -- inside --------------------------------------------------------------------------

    def _send(
        self, tokens: TokenArray, salt: str | None, hints: dict[str, Any], most: int, **more: Any
    ) -> str:
        (rid,) = self._engine.submit(
            [tokens],
            max_tokens=most,
            stream=True,
            cache_salt=salt,
            hints={{"capture": "donate"}.get(name, name): on for name, on in hints.items()},
            **more,
        )
        self._said[rid] = _Said()
        return rid

    def _rid(self, record: Record) -> str:
        return next(rid for rid, other in self._records.items() if other is record)

    def _take(self, kind: str, body: Any) -> int:
        rid = body if kind == "aborted" else body["rid"]
        said, record = self._said[rid], self._records.get(rid)
        if kind == "aborted":
            said.ended = True
        else:
            said.tokens += body["tokens"]
            said.likely += body["likely"]
            said.report = next(iter(body["semblend"]), said.report)
            said.ended = body["finished"] is not None
        if record is not None:
            record.answer, record.said = tuple(said.tokens), said.report
            record.finished = said.ended and not record.aborted
        return 1

    def _settle(self, record: Record, rid: str) -> None:
        loads, record.tainted, record.preemptions = self._engine.call(watching.ended, rid)
        record.loads = [Load(plan=plan, after=after) for after, plan in loads]
        if loads and not record.said:  # aborted before anything was reported
            record.said = {"approximate": True}

    def _learn(self) -> None:
        donors, split, self.largest_batch = self._engine.call(watching.news)
        self.split_prompts |= split
        for donor_id, tokens, salt in donors:
            self.donors[donor_id] = tokens
            self.givers[donor_id] = salt
