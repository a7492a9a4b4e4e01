"""Capture's threads work on their worker's device. A stand-in for CUDA: there is none here."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from types import SimpleNamespace
from unittest.mock import patch

import torch

from semblend.integration.scheduler.orders import CaptureCommand
from semblend.integration.worker import capture_copies as capturing
from semblend.integration.worker.capture_copies import CaptureThread
from semblend.integration.worker.donors import WorkerDonors
from semblend.kv.tiers import MemoryTier, TierStack
from tests.integration.models import random_tokens

DEVICE = torch.device("cuda", 3)
ACCESS = SimpleNamespace(device=DEVICE, token_bytes=64, layer_count=1)
TOKENS = random_tokens(64, seed=261)


class Reader:
    """Host memory that says it was read on a GPU."""

    def __init__(self, calls):
        self.calls = calls

    def read(self, block_ids, start, end):
        self.calls.append((threading.current_thread().name, "read"))
        return [torch.zeros(1, 2, end - start, 1, 8)]


def test_every_thread_of_capture_sets_its_device_before_anything_else():
    calls: list[tuple[str, str]] = []
    stream = SimpleNamespace(wait_event=lambda event: None, synchronize=lambda: None)

    def set_device(device):
        assert device == DEVICE
        calls.append((threading.current_thread().name, "set_device"))

    donors = WorkerDonors(TierStack([MemoryTier.on_host(capacity_bytes=1 << 20)], None))
    put = CaptureThread._put

    def watched_put(*arguments):
        calls.append((threading.current_thread().name, "put"))
        return put(*arguments)

    with (
        patch("torch.cuda.set_device", set_device),
        patch("torch.cuda.Event", lambda: SimpleNamespace(record=lambda: None)),
        patch("torch.cuda.Stream", lambda device: stream),
        patch("torch.cuda.stream", lambda stream: nullcontext()),
        patch.object(capturing, "SegmentReader", lambda access, tokens: Reader(calls)),
        patch.object(CaptureThread, "_put", watched_put),
    ):
        captures = CaptureThread(ACCESS, donors)
        for name in ("one", "two"):
            captures.submit(
                CaptureCommand(
                    request_id=name,
                    donor_id=name,
                    block_ids=(1, 2),
                    tokens=TOKENS,
                    share_key=name.encode().ljust(16),
                )
            )
        captures.wait()
        report = captures.take_report()
        captures.close()
    assert not report.rejected
    assert set(report.captured) == {"one", "two"}
    by_thread: dict[str, list[str]] = {}
    for thread, call in calls:
        by_thread.setdefault(thread, []).append(call)
    assert by_thread.pop("semblend-capture") == ["set_device", "read", "read"]
    assert sum(made.count("put") for made in by_thread.values()) == 2
    for thread, made in by_thread.items():
        assert thread.startswith("semblend-store")
        assert made[0] == "set_device"
        assert made.count("set_device") == 1
