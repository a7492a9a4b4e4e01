"""Real SGLang schedulers, with shorter words for tests."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from semblend.core.faults import FaultPoint
from semblend.core.tokens import TokenArray
from tests.integration.models import folder_of
from tests.integration.sglang import fault_probes, probes
from tests.integration.sglang.scheduler_process import serve

DEVICE = os.environ.get("TEST_SGLANG_DEVICE", "cpu")
"""`cuda` runs the same tests on a GPU, where no shim stands in for SGLang's kernels."""
SHIMS = Path(__file__).parent / "shims"
ROOT = Path(__file__).parents[3]
_NUMBERS = itertools.count(1)
_PATIENCE_S = 240.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One finished request."""

    request_id: str
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    cached_tokens: int
    semblend: dict[str, Any]
    finished: dict[str, Any]


class SchedulerDiedError(Exception):
    """The scheduler raised; carries its traceback."""


def environment(**config: Any) -> dict[str, str]:
    """What SGLang's processes are given, beside this one's environment."""
    config.setdefault("mode", "segmented_experimental")
    config.setdefault("recompute_policy", "none")
    config.setdefault("min_prompt_tokens", 64)
    path = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {
        **({"SGLANG_USE_CPU_ENGINE": "1"} if DEVICE == "cpu" else {}),
        "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_IDLE": "1",
        "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1",
        "SEMBLEND_SGLANG_CONFIG": json.dumps(config),
        "PYTHONPATH": os.pathsep.join([str(SHIMS), *path] if DEVICE == "cpu" else path),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "PYTHONWARNINGS": "ignore",
    }


def server_options(model: str, **changes: Any) -> dict[str, Any]:
    """What the command line would say."""
    options: dict[str, Any] = {
        "model_path": folder_of(model),
        "skip_tokenizer_init": True,
        "device": DEVICE,
        "attention_backend": "torch_native" if DEVICE == "cpu" else "triton",
        "dtype": "float32",
        "max_total_tokens": 8192,
        "context_length": 2048,
        "max_running_requests": 12,
        "mem_fraction_static": 0.7,  # max_total_tokens decides; others use this memory too
        "grammar_backend": "none",
        "radix_cache_backend": "semblend",
    }
    return {**options, **changes}


class Engine:
    """One scheduler and the pipe to it."""

    def __init__(
        self,
        model: str = "llama",
        *,
        server: dict[str, Any] | None = None,
        watched: bool = True,
        **config: Any,
    ) -> None:
        """Start a scheduler.

        Parameters
        ----------
        server
            What the command line would say.
        watched
            Whether forwards are recorded and memory is checked at every step. Both wait for the
            device, so nothing can be timed then.
        config
            The backend's options.
        """
        environ = environment(**config)
        if not watched:
            environ |= {name: "0" for name in environ if "STRICT_MEM_CHECK" in name}
        context = multiprocessing.get_context("spawn")
        options = server_options(model, **(server or {}))
        ranks = options.get("tp_size", 1)
        if ranks > 1:
            options["nccl_port"] = _free_port()
            cores = (str(rank % (os.cpu_count() or 1)) for rank in range(ranks))
            environ["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join(cores)
        pipes = [context.Pipe() for _ in range(ranks)]
        self._pipe, *self._others = [ours for ours, _ in pipes]
        kept = {name: os.environ.get(name) for name in environ}
        os.environ.update(environ)  # spawned interpreters read PYTHONPATH before any of our code
        try:
            self._process, *self._followers = [
                context.Process(
                    target=serve,
                    args=(theirs, options, environ, rank),
                    kwargs={"watched": watched},
                    daemon=True,
                )
                for rank, (_, theirs) in enumerate(pipes)
            ]
            for process in (self._process, *self._followers):
                process.start()
        finally:
            for name, value in kept.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})
        for _, theirs in pipes:
            theirs.close()
        kind, body = self._receive()
        if kind != "ready":
            raise SchedulerDiedError(body)
        for pipe in self._others:
            kind, body = pipe.recv()
            if kind != "ready":
                raise SchedulerDiedError(body)

    # -- requests --------------------------------------------------------------------

    def run(self, tokens: TokenArray, **options: Any) -> Answer:
        """One request, alone."""
        (answer,) = self.run_all([tokens], **options)
        return answer

    def run_all(self, prompts: Iterable[TokenArray], **options: Any) -> list[Answer]:
        """Several requests, received in one turn of the loop."""
        return self.collect(self.submit(prompts, **options))

    def submit(self, prompts: Iterable[TokenArray], **options: Any) -> list[str]:
        """Send requests and do not wait; their ids."""
        options.setdefault("max_tokens", 6)
        prefix = options.pop("name", "r")
        sampling = {
            "max_new_tokens": options.pop("max_tokens"),
            "temperature": 0.0,
            "ignore_eos": True,
        }
        stream = options.pop("stream", False)
        hints = options.pop("hints", None)
        if hints is not None:
            sampling["custom_params"] = {"semblend": hints}
        items = [
            {
                "rid": f"{prefix}{next(_NUMBERS)}",
                "tokens": [int(token) for token in prompt],
                "sampling": sampling,
                "stream": stream,
                **options,
            }
            for prompt in prompts
        ]
        self._pipe.send(("requests", items))
        return [item["rid"] for item in items]

    def collect(self, rids: Iterable[str]) -> list[Answer]:
        """Wait until these requests have ended."""
        order = list(rids)
        said: dict[str, dict[str, Any]] = {}
        done: dict[str, Answer] = {}
        while len(done) < len(order):
            kind, body = self._receive()
            if kind == "aborted" and body in order:
                done[body] = _aborted(body)
            elif kind == "output":
                so_far = said.setdefault(body["rid"], {"tokens": [], "logprobs": [], "say": []})
                so_far["tokens"] += body["tokens"]
                so_far["logprobs"] += body["logprobs"]
                so_far["say"] += body["semblend"]
                if body["finished"] is not None:
                    done[body["rid"]] = _answer(body, so_far)
        return [done[rid] for rid in order]

    def cold(self, tokens: TokenArray, **options: Any) -> Answer:
        """The same request under a salt of its own: nothing is shared with anybody."""
        options.setdefault("cache_salt", f"cold-{next(_NUMBERS)}")
        return self.run(tokens, **options)

    def donate(self, tokens: TokenArray, **options: Any) -> Answer:
        """Run a prompt so that it becomes a donor."""
        answer = self.run(tokens, max_tokens=1, **options)
        self.call(probes.wait_for_donors)
        return answer

    def abort(self, rid: str) -> None:
        """What a client that goes away causes."""
        self._pipe.send(("abort", rid))

    # -- looking inside --------------------------------------------------------------

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run `function(host, *args)` in the scheduler's process, between two turns."""
        self._pipe.send(("call", (function, args)))
        backlog = []
        while True:
            kind, body = self._receive()
            if kind == "result":
                for message in backlog:
                    self._early.append(message)
                return body
            if kind == "raised":
                raise AssertionError(body)
            backlog.append((kind, body))

    def call_all(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """The same on every rank."""
        others = range(1, 1 + len(self._others))
        return [
            self.call(function, *args),
            *(self.call_on(rank, function, *args) for rank in others),
        ]

    def call_on(self, rank: int, function: Callable[..., Any], *args: Any) -> Any:
        """The same on another rank than the first."""
        pipe = self._others[rank - 1]
        pipe.send(("call", (function, args)))
        if not pipe.poll(_PATIENCE_S):
            raise SchedulerDiedError(f"rank {rank} does not answer")
        kind, body = pipe.recv()
        if kind == "raised":
            raise AssertionError(body)
        return body

    @property
    def _early(self) -> list[Any]:
        if not hasattr(self, "_kept"):
            self._kept: list[Any] = []
        return self._kept

    def flush(self) -> None:
        """Empty the tree, donors and all."""
        self.call_all(probes.flush)

    def forwards(self) -> list[list[tuple[str, int, int]]]:
        """Extend forwards since the last time this was asked."""
        return self.call(probes.take_forwards)

    def kv(self, answer: Answer, start: int, end: int) -> torch.Tensor:
        """K/V of a request that just ran, [layers, 2, tokens, kv_heads, head_dim]."""
        return torch.from_numpy(self.call(probes.kv_of, answer.request_id, start, end))

    def counts(self) -> dict[str, int]:
        """The backend's counters."""
        return self.call(probes.counts)

    @contextmanager
    def planted(self, spec: str, *, seed: int = 0) -> Iterator[Counter[FaultPoint]]:
        """Plant faults in the scheduler's process; how often each fired is there at the end."""
        fired: Counter[FaultPoint] = Counter()
        self.call(fault_probes.plant, spec, seed)
        try:
            yield fired
        finally:
            fired.update(self.call(fault_probes.mend))

    @contextmanager
    def broken(self, target: str, times: int | None = None) -> Iterator[None]:
        """Let a function of the scheduler's process raise, always or the first `times`.

        For bugs of ours where no fault point lies.
        """
        self.call(probes.break_function, target, times)
        try:
            yield
        finally:
            self.call(probes.mend)

    def assert_no_leak(self) -> None:
        """SGLang's own idle checks ran, and found nothing."""
        assert self.call(probes.idle_checks) == []

    def close(self) -> None:
        if self._process.is_alive():
            with suppress(OSError):
                self._pipe.send(("stop", None))
            self._process.join(20)
        for process in (self._process, *self._followers):
            if process.is_alive():
                process.kill()
                process.join()

    def next_message(self, patience_s: float) -> tuple[str, Any] | None:
        """What the scheduler says next, if it does within this time."""
        if not self._early and not self._pipe.poll(patience_s):
            return None
        return self._receive()

    def _receive(self) -> tuple[str, Any]:
        if self._early:
            kind, body = self._early.pop(0)
        else:
            if not self._pipe.poll(_PATIENCE_S):
                raise SchedulerDiedError("the scheduler does not answer")
            kind, body = self._pipe.recv()
        if kind in ("died", "failed"):
            raise SchedulerDiedError(body)
        return kind, body


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def _answer(body: dict[str, Any], so_far: dict[str, Any]) -> Answer:
    return Answer(
        request_id=body["rid"],
        tokens=tuple(so_far["tokens"]),
        logprobs=tuple(so_far["logprobs"]),
        cached_tokens=body["cached_tokens"],
        semblend=so_far["say"][0] if so_far["say"] else {},
        finished=body["finished"],
    )


def _aborted(rid: str) -> Answer:
    return Answer(
        request_id=rid,
        tokens=(),
        logprobs=(),
        cached_tokens=0,
        semblend={},
        finished={"type": "abort"},
    )
