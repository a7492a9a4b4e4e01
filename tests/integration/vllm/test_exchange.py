"""Donors between machines, without the machines: what a rank shares is what another fetches."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from semblend.fleet.directory.index import SharedDonor
from semblend.fleet.placement.expected_time import FleetCost
from semblend.fleet.transport.folder import FolderStore
from semblend.integration.scheduler.fleet_donors import worth_moving
from semblend.integration.scheduler.orders import CaptureCommand, FetchCommand
from semblend.integration.scheduler.prefill_clock import PrefillClock
from semblend.integration.worker.donors import SEGMENT_TOKENS, WorkerDonors, segment_keys
from semblend.integration.worker.segment_exchange import QUEUED, SegmentExchange
from semblend.kv.segments import Segment
from semblend.kv.tiers import MemoryTier, TierStack
from semblend.planning.cost import CostModel

ACCESS = SimpleNamespace(layer_count=2, parts=2, kv_heads=2, head_dim=4, dtype=torch.float32)
SHARE_KEY = b"k" * 16
TOKENS = np.arange(3, 3 + SEGMENT_TOKENS + 77, dtype=np.int32)


def kv_of(tokens):
    generator = torch.Generator().manual_seed(int(tokens.sum()))
    return torch.randn(2, 2, len(tokens), 2, 4, generator=generator)


def rank_of(store, *, rank=0, ranks=1, access=ACCESS, max_bytes=1 << 24, ttl_s=60.0):
    donors = WorkerDonors(TierStack([MemoryTier.on_host(capacity_bytes=1 << 22)], None))
    exchange = SegmentExchange(
        donors, access, store, rank=rank, ranks=ranks, max_bytes=max_bytes, ttl_s=ttl_s
    )
    return donors, exchange


def keep(donors, donor_id, tokens):
    """Store a donor as the capture thread does."""
    keys = segment_keys(SHARE_KEY, tokens)
    kv = kv_of(tokens)
    donors.claim(donor_id, tokens, keys)
    for key in keys:
        part = kv[:, :, key.start : key.start + key.length].contiguous()
        donors.tiers.put(Segment(key=key, kv=part))


def capture(donor_id="d", tokens=TOKENS, shared_as=7):
    return CaptureCommand(
        request_id="r",
        donor_id=donor_id,
        block_ids=(),
        tokens=tokens,
        share_key=SHARE_KEY,
        shared_as=shared_as,
    )


def fetch(donor_id="fleet.7.1", tokens=TOKENS, share_key=SHARE_KEY):
    return FetchCommand(donor_id=donor_id, shared_as=7, tokens=tokens, share_key=share_key)


def reported(exchange, wanted, timeout_s=20.0):
    """Reports added up until `wanted` holds."""
    total = exchange.take_report()
    deadline = time.monotonic() + timeout_s
    while not wanted(total):
        assert time.monotonic() < deadline, total
        exchange.wait_a_little()
        total = total + exchange.take_report()
    return total


def shared(exchange, command):
    exchange.share(command)
    return reported(exchange, lambda r: r.shared or r.withdrawn)


def fetched(exchange, command):
    exchange.fetch(command)
    return reported(exchange, lambda r: r.answered)


@pytest.fixture
def store(tmp_path):
    return FolderStore(tmp_path / "store")


@pytest.fixture
def two(store):
    mine, theirs = rank_of(store), rank_of(store)
    yield mine, theirs
    for _, exchange in (mine, theirs):
        exchange.close()


def test_what_one_rank_shares_another_fetches_bit_for_bit(two):
    (donors, sharing), (others, fetching) = two
    keep(donors, "d", TOKENS)
    assert shared(sharing, capture()).shared == {"d": 1}
    report = fetched(fetching, fetch())
    assert report.captured == {"fleet.7.1": 1}
    assert report.capture_bytes["fleet.7.1"] == kv_of(TOKENS).nbytes
    with others.lease("fleet.7.1", 0, len(TOKENS)) as donor:
        brought = torch.cat([piece.kv for piece in donor.pieces], dim=2)
    assert torch.equal(brought, kv_of(TOKENS))
    assert np.array_equal(donor.tokens, TOKENS)


def test_another_rank_namespace_or_shape_gets_nothing(two, store):
    (donors, sharing), _ = two
    keep(donors, "d", TOKENS)
    shared(sharing, capture())
    wider = SimpleNamespace(**{**vars(ACCESS), "kv_heads": 4})
    for options, command in (
        ({"rank": 1, "ranks": 2}, fetch()),
        ({"rank": 0, "ranks": 2}, fetch()),
        ({}, fetch(share_key=b"x" * 16)),
        ({"access": wider}, fetch()),
    ):
        others, exchange = rank_of(store, **options)
        report = fetched(exchange, command)
        assert not report.captured
        assert "fleet.7.1" in report.rejected
        assert "fleet.7.1" not in others
        exchange.close()


@pytest.mark.parametrize("byte", [0, 40, -1])
def test_a_segment_with_one_wrong_bit_is_not_stored(two, store, tmp_path, byte):
    (donors, sharing), (others, fetching) = two
    keep(donors, "d", TOKENS)
    shared(sharing, capture())
    for file in (tmp_path / "store").iterdir():
        data = bytearray(file.read_bytes())
        data[byte] ^= 1
        file.write_bytes(data)
    report = fetched(fetching, fetch())
    assert not report.captured
    assert "fleet.7.1" not in others
    assert not [key for key in segment_keys(SHARE_KEY, TOKENS) if key in others.tiers]


def test_what_was_withdrawn_is_said_and_cannot_be_fetched(two, tmp_path):
    (donors, sharing), (_, fetching) = two
    keep(donors, "d", TOKENS)
    shared(sharing, capture())
    sharing.clear()
    assert sharing.take_report().withdrawn == {"d"}
    assert not list((tmp_path / "store").iterdir())
    assert "fleet.7.1" in fetched(fetching, fetch()).rejected
    sharing.share(capture())
    assert sharing.take_report().withdrawn == {"d"}, "nothing is shared any more"
    assert "fleet.7.1" in fetched(sharing, fetch()).rejected, "and nothing fetched"


def test_a_quota_withdraws_the_oldest_and_says_so(store):
    size = kv_of(TOKENS).nbytes
    donors, exchange = rank_of(store, max_bytes=int(1.5 * size))
    keep(donors, "d", TOKENS)
    assert shared(exchange, capture()).shared == {"d": 1}
    more = TOKENS + 1000
    keep(donors, "e", more)
    report = shared(exchange, capture("e", more, shared_as=8))
    assert report.shared == {"e": 1}
    assert report.withdrawn == {"d"}
    exchange.close()


def test_a_donor_lost_before_it_was_shared_is_no_harm(two):
    (_, sharing), _ = two
    assert shared(sharing, capture()).withdrawn == {"d"}


def test_more_than_the_queue_holds_is_not_shared_and_nobody_waits(two, monkeypatch):
    (donors, sharing), _ = two
    keep(donors, "d", TOKENS)
    go_on = threading.Event()
    monkeypatch.setattr(sharing, "_share", lambda command: go_on.wait(60) and None)
    for number in range(QUEUED + 20):
        sharing.share(capture(f"d{number}"))
    go_on.set()
    report = reported(sharing, lambda r: len(r.shared) + len(r.withdrawn) == QUEUED + 20)
    assert report.withdrawn
    assert report.shared


def test_a_donor_is_moved_only_where_that_beats_computing():
    cost = FleetCost(seconds_per_token=1e-3, kv_bytes_per_token=10_000, transfer_bytes_per_s=1e9)
    donor = SharedDonor(donor_key=7, covered_tokens=900, token_count=1000)
    assert worth_moving(donor, cost, 1000, 0, 0) == pytest.approx(cost.transfer_s(1000))
    assert worth_moving(donor, cost, 1000, 0, 900) is None, "as much is here"
    assert worth_moving(donor, cost, 1000, 960, 960) is None, "nearly all is computed"
    slow = FleetCost(seconds_per_token=1e-3, kv_bytes_per_token=10_000, transfer_bytes_per_s=1e6)
    assert worth_moving(donor, slow, 1000, 0, 0) is None, "it would take ten seconds"
    fast = FleetCost(seconds_per_token=1e-7, kv_bytes_per_token=10_000, transfer_bytes_per_s=1e9)
    assert worth_moving(donor, fast, 1000, 0, 0) is None, "computing takes no time"


def test_the_prefill_clock_learns_from_whole_prompts_and_keeps_the_fastest():
    now, cost = [0.0], CostModel()
    clock = PrefillClock(cost, clock=lambda: now[0])
    assert clock.seconds_per_unit is None
    for request_id, seconds in (("slow", 4.0), ("fast", 1.0), ("middling", 2.0)):
        clock.started(request_id, 100)
        now[0] += seconds
        clock.step_done()  # a chunk, not the end
        clock.finishes(request_id, 600)
        clock.step_done()
    assert clock.seconds_per_unit == pytest.approx(1.0 / cost.compute(100, 600))
    clock.started("preempted", 0)
    clock.forget("preempted")
    clock.finishes("preempted", 600)
    clock.step_done()
    assert clock.seconds_per_unit == pytest.approx(1.0 / cost.compute(100, 600))
