"""One arm in its own process: start the engine once, measure every cell that is missing.

    python -m benchmarks.evidence.measuring --output DIR --arm ARM --task WORKLOAD:SEED …

The command `python -m benchmarks.evidence` starts this in the environment that has vLLM.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.evidence.arms import BY_NAME, Arm, Machine, missing
from benchmarks.evidence.asks import items_of
from benchmarks.evidence.cells import ONE_BY_ONE, Cell, CellName, Request, Task
from benchmarks.evidence.figures import passes
from benchmarks.evidence.settings import Settings
from benchmarks.evidence.sweep import sweep
from benchmarks.evidence.workloads import WORKLOADS
from sembench.live.arrivals import ArrivalKind, Arrivals
from sembench.live.load import LoadOptions, run_load
from sembench.live.prompt import EngineClient, Prompt
from sembench.live.reply import Reply
from sembench.model import ManifestItem
from sembench.provenance import environment, git_state, utc_now

IN_FLIGHT = 512
OUT_OF_TIME = 75
"""Exit code of a process that stopped because its time was up, not because it was done."""


class OutOfTimeError(Exception):
    """The next cell would start after the run's end."""


class Recording:
    """A client that keeps every reply."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self.replies: dict[str, Reply] = {}

    async def complete(self, prompt: Prompt) -> Reply:
        reply = await self._client.complete(prompt)
        self.replies[prompt.request_id] = reply
        return reply

    async def close(self) -> None:
        """The engine outlives a cell."""


class Measuring:
    """Measures the cells of one arm."""

    def __init__(
        self, client: Any, arm: Arm, settings: Settings, folder: Path, until: float
    ) -> None:
        self._client, self._arm, self._settings = client, arm, settings
        self._folder, self._until = folder, until

    def task(self, task: Task, runner: asyncio.Runner) -> None:
        """One sweep, or one series over time; cells that exist are not measured again.

        Raises
        ------
        OutOfTimeError
            If time is up before it is done.
        """
        if task.series:
            self._cell(task, ONE_BY_ONE, runner)
            return
        limit = self._settings.limit_ms
        sweep(
            self._settings.rule,
            lambda rate: passes(self._cell(task, rate, runner), limit_ms=limit),
        )

    def _cell(self, task: Task, rate: float, runner: asyncio.Runner) -> Cell:
        name = CellName(workload=task.workload, arm=self._arm.name, seed=task.seed, rate=rate)
        if name.path(self._folder).exists():
            return Cell.read(name.path(self._folder))
        if time.time() >= self._until:
            raise OutOfTimeError
        cell = runner.run(self._measure(name, task))
        cell.write(self._folder)
        took = max((each.row.end_s for each in cell.requests), default=0.0)
        print(f"{name.workload} {name.arm} seed {name.seed} {rate:g}/s: {took:.0f} s", flush=True)
        return cell

    async def _measure(self, name: CellName, task: Task) -> Cell:
        settings, client = self._settings, self._client
        count = settings.over_time if task.series else settings.requests
        warm = 0 if task.series else settings.warm_up
        asks = WORKLOADS[name.workload](name.seed, warm + count, settings.tokens)
        items = items_of(asks, reorder=self._arm.reorder)
        await client.empty()
        for item in items[:warm]:
            text = item.recipient_prompt
            prompt = Prompt(request_id=item.item_id, text=text, max_tokens=settings.max_tokens)
            await client.complete(prompt)
        items = items[warm:]
        await client.settle()
        recording = Recording(client)
        before = (client.busy_seconds, time.process_time(), _load(), client.decode_seconds)
        closed = name.rate == ONE_BY_ONE
        arrivals = (
            Arrivals(kind=ArrivalKind.CLOSED)
            if closed
            else Arrivals(kind=ArrivalKind.POISSON, rate=name.rate, seed=name.seed)
        )
        options = LoadOptions(
            run_id=f"{name.arm}-{name.workload}-{name.seed}-{name.rate:g}",
            arrivals=arrivals,
            concurrency=1 if closed else IN_FLIGHT,
            requests=count,
            max_tokens=settings.max_tokens,
        )
        rows = [row async for row in run_load(recording, items, options)]
        await client.settle()
        return Cell(
            name=name,
            requests=_requests(rows, items, recording.replies),
            busy_seconds=client.busy_seconds - before[0],
            cpu_seconds=time.process_time() - before[1],
            decode_seconds=client.decode_seconds - before[3],
            memory_bytes=_resident(),
            machine={**_machine(), "load_before": before[2], "load_after": _load()},
        )


def _requests(
    rows: Sequence[Any], items: Sequence[ManifestItem], replies: dict[str, Reply]
) -> tuple[Request, ...]:
    found = []
    for row in sorted(rows, key=lambda each: each.position):
        reply = replies[row.request_id]
        found.append(
            Request(
                row=replace(row, gaps_ms=tuple(round(gap, 3) for gap in row.gaps_ms)),
                text=reply.text,
                expected=items[row.position % len(items)].answers,
                exact_tokens=reply.exact_tokens or 0,
                reused_tokens=reply.reused_tokens or 0,
                continued_tokens=reply.continued_tokens or 0,
                recomputed_tokens=(reply.strip or {}).get("recomputed_tokens", 0),
                outcome=_outcome(reply),
            )
        )
    return tuple(found)


def _outcome(reply: Reply) -> str:
    reason = (reply.strip or {}).get("reason")
    return f"{reply.outcome}: {reason}" if reason else reply.outcome or ""


def _load() -> float:
    return os.getloadavg()[0]


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()


def _machine() -> dict[str, Any]:
    import torch

    told = environment()
    packages = told["packages"]
    commit, changed = git_state()
    return {
        "python": told["python"],
        "platform": told["platform"],
        "vllm": packages.get("vllm"),
        "torch": packages.get("torch"),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "",
        "commit": commit,
        "changed": changed,
        "at": utc_now(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor()


def task_of(text: str) -> Task:
    """A task as it is written on the command line: WORKLOAD:SEED, or WORKLOAD:SEED:series."""
    workload, seed, *series = text.split(":")
    return Task(workload=workload, seed=int(seed), series=bool(series))


def text_of(task: Task) -> str:
    """The inverse of `task_of`."""
    return f"{task.workload}:{task.seed}" + (":series" if task.series else "")


def prepare(settings: Settings) -> None:
    """Set this process up before anything imports vLLM."""
    os.environ.update(
        HF_HUB_OFFLINE="1",
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        VLLM_NO_USAGE_STATS="1",
        VLLM_USE_FLASHINFER_SAMPLER="0",
        VLLM_CPU_OMP_THREADS_BIND="nobind",
        OMP_WAIT_POLICY="passive",
        LMCACHE_LOCAL_CPU="True",
        LMCACHE_MAX_LOCAL_CPU_SIZE=str(settings.host_bytes / (1 << 30)),
    )
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    if settings.machine is Machine.CPU:
        os.environ["OMP_NUM_THREADS"] = str(settings.threads)


def main(arguments: list[str]) -> int:
    """Measure what is missing; `OUT_OF_TIME` if time ran out first."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.evidence.measuring")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--arm", choices=list(BY_NAME), required=True)
    parser.add_argument("--task", action="append", type=task_of, required=True)
    parser.add_argument("--until", type=float, default=float("inf"), help="seconds since 1970")
    chosen = parser.parse_args(arguments)
    folder = chosen.output.resolve()
    settings, arm = Settings.read(folder), BY_NAME[chosen.arm]
    prepare(settings)
    if reason := missing(arm):
        print(f"EnvironmentError: {reason}", flush=True)
        return 1
    from benchmarks.evidence.engine import start

    client = start(arm, settings)
    with asyncio.Runner() as runner:
        try:
            measuring = Measuring(client, arm, settings, folder, chosen.until)
            warm = WORKLOADS["novel"](-1, 3, settings.tokens)
            for ask in warm:  # first uses of kernels and shapes belong to no cell
                runner.run(
                    client.complete(Prompt(request_id=ask.name, text=ask.text, max_tokens=4))
                )
            for task in chosen.task:
                measuring.task(task, runner)
        except OutOfTimeError:
            return OUT_OF_TIME
        finally:
            runner.run(client.close())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
