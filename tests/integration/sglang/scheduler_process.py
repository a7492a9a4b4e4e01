"""SGLang's real scheduler in a process of its own, with a pipe instead of its sockets.

Only the transport is replaced: requests come from the pipe, outputs go to it. Scheduler,
overlap loop, model runner, radix tree and K/V pool are SGLang's own. Between two turns of
the loop, functions sent by a test run inside this process, so a test can look at
and break whatever it likes, at a point where nothing is half done.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any


class Host:
    """What functions sent by a test are given: the scheduler and what was recorded."""

    def __init__(self, scheduler: Any, connection: Connection, rank: int = 0) -> None:
        self.scheduler = scheduler
        self.rank = rank
        self.connection = connection
        self.patches = contextlib.ExitStack()
        self.forwards: list[list[tuple[str, int, int]]] = []
        """Of every extend forward: (request id, first position, tokens) a sequence."""
        self.rows: dict[str, Any] = {}
        """Slots of every request's row when it was last seen, [tokens]."""
        self.requests: dict[str, Any] = {}
        self.leaks: list[str] = []
        self.memory: dict[str, Any] = {}
        """Whatever a test wants to keep here between two calls."""

    @property
    def cache(self) -> Any:
        return self.scheduler.tree_cache

    @property
    def side(self) -> Any:
        return self.cache.side

    @property
    def runner(self) -> Any:
        return self.scheduler.tp_worker.model_runner

    def idle(self) -> bool:
        return bool(self.scheduler.is_fully_idle())

    def pull(self) -> list[Any] | None:
        """Requests since the last turn; calls are answered here.

        Other ranks than the first are sent requests by it, and are only called here.
        """
        if self.rank:
            while self.connection.poll(0):
                self._answer(*self.connection.recv()[1])
            return None
        requests: list[Any] = []
        while self.connection.poll(0 if requests or not self.idle() else 0.02):
            kind, body = self.connection.recv()
            if kind == "requests":
                requests += [_tokenised(**item) for item in body]
            elif kind == "abort":
                from sglang.srt.managers.io_struct import AbortReq

                requests.append(AbortReq(rid=body))
            elif kind == "call":
                self._answer(*body)
                break  # a turn of the loop lies between two calls
            elif kind == "stop":
                self.scheduler.gracefully_exit = True
                break
        return requests

    def _answer(self, function: Any, args: tuple[Any, ...]) -> None:
        try:
            self.connection.send(("result", function(self, *args)))
        except Exception as error:
            self.connection.send(("raised", f"{error!r}\n{traceback.format_exc()}"))

    def send_output(self, output: Any, _request: Any = None) -> None:
        """What would go to the detokenizer."""
        finished = getattr(output, "finished_reasons", None)
        if finished is None:
            if type(output).__name__ == "AbortReq":
                self.connection.send(("aborted", output.rid))
            return
        from sglang.srt.managers.io_struct import unwrap_from_pickle

        said = unwrap_from_pickle(output.customized_info) if output.customized_info else {}
        for index, rid in enumerate(output.rids):
            values = output.output_token_logprobs_val
            reports = (said.get("semblend") or [None] * len(output.rids))[index]
            likely = output.output_top_logprobs_val, output.output_top_logprobs_idx
            self.connection.send(
                (
                    "output",
                    {
                        "rid": rid,
                        "finished": finished[index],
                        "tokens": list(output.output_ids[index]),
                        "cached_tokens": output.cached_tokens[index],
                        "logprobs": [float(v) for v in values[index]] if values else [],
                        "likely": _likely(*(part[index] for part in likely)) if all(likely) else [],
                        "semblend": [report for report in reports or () if report],
                    },
                )
            )


def _likely(values: Any, tokens: Any) -> list[dict[int, float]]:
    """Log-probabilities of the likeliest tokens, a place."""
    return [
        {int(token): float(value) for value, token in zip(*place, strict=True)}
        for place in zip(values or (), tokens or (), strict=True)
    ]


def _tokenised(
    *, rid: str, tokens: list[int], sampling: dict[str, Any], stream: bool, **options: Any
) -> Any:
    from array import array

    from sglang.srt.managers.io_struct import TokenizedGenerateReqInput
    from sglang.srt.sampling.sampling_params import SamplingParams

    parameters = SamplingParams(**sampling)
    parameters.normalize(None)
    return TokenizedGenerateReqInput(
        rid=rid,
        input_text="",
        input_ids=array("q", tokens),
        input_embeds=None,
        mm_inputs=None,
        token_type_ids=None,
        sampling_params=parameters,
        return_logprob=True,
        logprob_start_len=options.pop("logprob_start_len", -1),
        top_logprobs_num=options.pop("top_logprobs_num", 0),
        token_ids_logprob=None,
        stream=stream,
        **options,
    )


def serve(
    connection: Connection,
    options: dict[str, Any],
    environ: dict[str, str],
    rank: int = 0,
    *,
    watched: bool = True,
) -> None:
    """Build a scheduler and run its loop until told to stop."""
    os.environ.update(environ)
    # A spawned interpreter takes its parent's path over, without what PYTHONPATH says now.
    sys.path[:0] = environ["PYTHONPATH"].split(os.pathsep)[:1]
    try:
        scheduler = _scheduler(options, rank)
    except BaseException as error:
        connection.send(("failed", f"{type(error).__name__}: {error}\n{traceback.format_exc()}"))
        return
    host = Host(scheduler, connection, rank)
    # On the class: SGLang's components are frozen.
    type(scheduler.request_receiver)._pull_raw_reqs = lambda _: host.pull()
    senders = (
        scheduler.ipc_channels.send_to_tokenizer,
        scheduler.ipc_channels.send_to_detokenizer,
    )
    for sender in () if rank else senders:
        sender.send_output = host.send_output
    if watched:
        _record(host)
    connection.send(("ready", None))
    try:
        scheduler.run_event_loop()
    except BaseException:
        connection.send(("died", traceback.format_exc()))
        time.sleep(0.5)
    os._exit(0)  # SGLang's threads do not end by themselves


def _scheduler(options: dict[str, Any], rank: int) -> Any:
    import torch

    torch.set_num_threads(1)
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.plugins import load_plugins
    from sglang.srt.runtime_context import SpawnRanks, publish
    from sglang.srt.server_args import PortArgs, ServerArgs

    if change := options.pop("before", None):  # what a test changes in SGLang or in us
        from tests.integration.sglang import changes

        changes.listen()
        if change != "listen":
            getattr(changes, change)()
    if options.pop("patched", False):  # as a program of the user's would
        from semblend.integration.sglang.radix_patcher import patch_radix_cache

        patch_radix_cache()
    load_plugins()
    arguments = ServerArgs(**options)
    arguments.resolve_once()
    arguments.check_server_args()
    ports = PortArgs.init_new(arguments)
    publish(
        arguments, role="scheduler", ranks=SpawnRanks(world_rank=rank, dp_rank=None, gpu_id=rank)
    )
    logging.basicConfig(level=os.environ.get("TEST_SGLANG_LOG", "WARNING"))
    return Scheduler(arguments, ports)


def _record(host: Host) -> None:
    """Note what every forward computes, where requests' slots are, and leaks."""
    runner, checker = host.runner, type(host.scheduler.invariant_checker)
    forward, report = runner.forward, checker._report_leak

    def recorded(batch: Any, *args: Any, **kwargs: Any) -> Any:
        if batch.forward_mode.is_extend():
            starts, lengths = batch.extend_prefix_lens_cpu, batch.extend_seq_lens_cpu
            host.forwards.append(
                [
                    (rid, int(start), int(length))
                    for rid, start, length in zip(batch.rids, starts, lengths, strict=True)
                ]
            )
            table = runner.req_to_token_pool.req_to_token
            ends = batch.seq_lens_cpu.tolist()
            rows = batch.req_pool_indices.tolist()
            for rid, row, end in zip(batch.rids, rows, ends, strict=True):
                host.rows[rid] = table[row, :end].clone()
        return forward(batch, *args, **kwargs)

    def leaked(checking: Any, name: str, message: str) -> None:
        host.leaks.append(f"{name}: {message}")
        if not host.memory.get("tolerate_leaks"):
            report(checking, name, message)

    runner.forward = recorded
    checker._report_leak = leaked
    run = host.scheduler.run_batch

    def noted(batch: Any, *args: Any, **kwargs: Any) -> Any:
        host.requests.update({request.rid: request for request in batch.reqs})
        return run(batch, *args, **kwargs)

    host.scheduler.run_batch = noted
