"""The capture thread works on its worker's device. A stand-in for CUDA: there is none here."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from types import SimpleNamespace
from unittest.mock import patch

import torch

from semblend.integration.vllm.capture import CaptureThread
from semblend.integration.vllm.donors import WorkerDonors
from semblend.integration.vllm.metadata import CaptureCommand
from semblend.kv.tiers import MemoryTier, TierStack
from tests.integration.models import random_tokens

DEVICE = torch.device("cuda", 3)
TOKENS = random_tokens(64, seed=261)


class Access:
    """K/V in host memory that says it lies on a GPU."""

    device, token_bytes, layers = DEVICE, 64, ("layer",)

    def __init__(self, calls):
        self.calls = calls

    def read(self, block_ids, start, end):
        self.calls.append(("read", threading.current_thread().name))
        return torch.zeros(1, 2, end - start, 1, 8)


def test_the_capture_thread_sets_its_device_before_it_reads():
    calls: list[tuple[str, object]] = []
    stream = SimpleNamespace(wait_event=lambda event: None, synchronize=lambda: None)

    def set_device(device):
        assert device == DEVICE
        calls.append(("set_device", threading.current_thread().name))

    donors = WorkerDonors(TierStack([MemoryTier.on_host(capacity_bytes=1 << 20)], None))
    with (
        patch("torch.cuda.set_device", set_device),
        patch("torch.cuda.Event", lambda: SimpleNamespace(record=lambda: None)),
        patch("torch.cuda.Stream", lambda device: stream),
        patch("torch.cuda.stream", lambda stream: nullcontext()),
    ):
        captures = CaptureThread(Access(calls), donors)
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
    assert calls == [
        ("set_device", "semblend-capture"),
        ("read", "semblend-capture"),
        ("read", "semblend-capture"),
    ]
