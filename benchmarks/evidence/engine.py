"""vLLM in this process, behind the interface that `sembench run-load` sends to.

One thread steps the engine, as vLLM's own engine process does, and takes in new requests between
steps. Times are taken there, so the client's side adds nothing to them.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import queue
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from benchmarks.evidence.arms import Arm, Machine, engine_options
from benchmarks.evidence.settings import Settings
from sembench.live.prompt import Prompt
from sembench.live.reply import Reply

IDLE_SECONDS = 0.05


@dataclass(slots=True, kw_only=True)
class _Running:
    """A request between its arrival and its last token."""

    request_id: str
    tokens: list[int]
    max_tokens: int
    started: float
    answered: asyncio.Future[Reply]
    loop: asyncio.AbstractEventLoop
    times: list[float] = field(default_factory=list)
    output: list[int] = field(default_factory=list)


def start(arm: Arm, settings: Settings) -> VllmClient:
    """Start an arm's engine in this process."""
    from transformers import AutoTokenizer
    from vllm import LLM
    from vllm.config import KVTransferConfig

    options = engine_options(arm, settings.machine, settings.memory, certified=settings.certified)
    if transfer := options.pop("kv_transfer_config", None):
        options["kv_transfer_config"] = KVTransferConfig(**transfer)
    if settings.machine is Machine.CPU:
        options |= {"dtype": "float32", "enforce_eager": True}
    else:
        options |= {"dtype": "bfloat16"}
    llm = LLM(model=settings.model, skip_tokenizer_init=True, **options)
    return VllmClient(llm, AutoTokenizer.from_pretrained(settings.tokenizer))


class VllmClient:
    """Sends prompts to one engine. Nobody else may step it until `close`."""

    def __init__(self, llm: Any, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._engine: Any = llm.llm_engine
        self._core: Any = self._engine.engine_core.engine_core
        self._inbox: queue.Queue[_Running] = queue.Queue()
        self._running: dict[str, _Running] = {}
        self._numbers = itertools.count()
        self._failure: BaseException | None = None
        self._closed = False
        self.busy_seconds = 0.0
        self.decode_seconds = 0.0
        """Of these, in steps of requests that all have their first token."""
        self._thread = threading.Thread(target=self._steps, name="engine", daemon=True)
        self._thread.start()

    async def complete(self, prompt: Prompt) -> Reply:
        """Send a prompt and wait for its last token. Never raises: a failure is a reply."""
        loop = asyncio.get_running_loop()
        running = _Running(
            request_id=prompt.request_id,
            tokens=self._tokenizer(prompt.text, add_special_tokens=False)["input_ids"],
            max_tokens=prompt.max_tokens,
            started=time.perf_counter(),
            answered=loop.create_future(),
            loop=loop,
        )
        self._inbox.put(running)
        if self._failure is not None:  # the thread has ended and will not see it
            return Reply(request_id=prompt.request_id, error=f"engine ended: {self._failure!r}")
        return await running.answered

    async def close(self) -> None:
        """End the thread; the engine stays."""
        self._closed = True
        await asyncio.to_thread(self._thread.join)

    async def empty(self) -> None:
        """Forget everything that was cached.

        Raises
        ------
        RuntimeError
            If the engine refuses for ten seconds.
        """
        for _ in range(200):
            await self.settle()
            if self._engine.reset_prefix_cache(reset_connector=True):
                return
            await asyncio.sleep(IDLE_SECONDS)
        raise RuntimeError("the engine does not empty its caches")

    async def settle(self) -> None:
        """Wait until nothing is under way, captures included."""
        while not self._idle() and self._failure is None:
            await asyncio.sleep(IDLE_SECONDS)

    def _idle(self) -> bool:
        return self._inbox.empty() and not self._running and not self._has_work()

    def _has_work(self) -> bool:
        return bool(self._core.scheduler.has_requests() or self._core.batch_queue)

    def _steps(self) -> None:
        try:
            while not self._closed:
                self._take_in()
                if not self._running and not self._has_work():
                    with contextlib.suppress(queue.Empty):
                        self._add(self._inbox.get(timeout=IDLE_SECONDS))
                    continue
                decodes = all(running.times for running in self._running.values())
                started = time.perf_counter()
                outputs = self._step()
                now = time.perf_counter()
                self.busy_seconds += now - started
                if self._running and decodes:
                    self.decode_seconds += now - started
                for output in outputs:
                    self._took(output, now)
        except Exception as error:
            self._failure = error
            for running in [*self._running.values(), *self._left()]:
                self._answer(running, Reply(request_id=running.request_id, error=repr(error)))

    def _step(self) -> list[Any]:
        if self._running:
            return list(self._engine.step())
        self._core.step_fn()  # behind the last answer the engine still copies donors
        return []

    def _left(self) -> list[_Running]:
        found = []
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self._inbox.get_nowait())
        return found

    def _take_in(self) -> None:
        for running in self._left():
            self._add(running)

    def _add(self, running: _Running) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        sampling = SamplingParams(
            max_tokens=running.max_tokens,
            temperature=0.0,
            ignore_eos=True,  # every arm decodes as much; the answer is cut at its end below
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        key = f"{next(self._numbers)}-{running.request_id}"
        try:
            self._engine.add_request(key, {"prompt_token_ids": running.tokens}, sampling)
        except Exception as error:  # what vLLM refuses, a prompt that is too long first of all
            self._answer(running, Reply(request_id=running.request_id, error=repr(error)))
            return
        self._running[key] = running

    def _took(self, output: Any, now: float) -> None:
        running = self._running[output.request_id]
        tokens = list(output.outputs[0].token_ids)
        running.output += tokens
        running.times += [now] * len(tokens)
        if output.finished:
            del self._running[output.request_id]
            self._answer(running, self._reply(running, output))

    def _reply(self, running: _Running, output: Any) -> Reply:
        said = (output.kv_transfer_params or {}).get("semblend") or {}
        cached = int(output.num_cached_tokens or 0)
        exact = int(said.get("exact_tokens", 0 if said else cached))
        times = running.times
        return Reply(
            request_id=running.request_id,
            text=self._text(running.output),
            ttft_ms=(times[0] - running.started) * 1e3,
            latency_ms=(times[-1] - running.started) * 1e3,
            gaps_ms=tuple((after - before) * 1e3 for before, after in itertools.pairwise(times)),
            prompt_tokens=len(running.tokens),
            output_tokens=len(running.output),
            exact_tokens=exact,
            reused_tokens=int(said.get("reused_tokens", 0)),
            continued_tokens=int(said.get("continued_tokens", 0)),
            cached_tokens=cached,
            confirmed_by="response",
            outcome=said.get("outcome"),
            strip={
                "recomputed_tokens": int(said.get("recomputed_tokens", 0)),
                "reason": said.get("reason") or "",
            },
        )

    def _text(self, output: list[int]) -> str:
        end = self._tokenizer.eos_token_id
        answer = output[: output.index(end)] if end in output else output
        return str(self._tokenizer.decode(answer))

    def _answer(self, running: _Running, reply: Reply) -> None:
        def settle() -> None:
            if not running.answered.done():
                running.answered.set_result(reply)

        running.loop.call_soon_threadsafe(settle)
