"""Parking, holding, cancelling and giving room: blocks are never touched behind anybody's back."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from semblend.core.errors import CapacityError
from semblend.core.faults import planted
from semblend.integration.trtllm.worker_side import LoadFailedError, TrtWorkerSide
from semblend.integration.worker.capture_copies import CaptureThread
from semblend.kv.segments import Segment, SegmentKey
from tests.integration.models import joined, random_tokens
from tests.integration.trtllm.engines import BLOCK, cold, wait_for_copies

DOCUMENT = random_tokens(300, seed=1)
FIRST = joined(DOCUMENT, random_tokens(20, seed=2))
SECOND = joined(DOCUMENT, random_tokens(30, seed=3))
LOADED = 300 // BLOCK * BLOCK


LOADS = (TrtWorkerSide, "_copy")
CAPTURES = (CaptureThread, "_store")


@pytest.fixture
def gate(monkeypatch):
    """Copies of the given kind wait until the gate is opened."""
    doors = []

    def closed(kind):
        owner, method = kind
        door = threading.Event()
        real = getattr(owner, method)

        def waiting(self, order):
            assert door.wait(30)
            return real(self, order)

        monkeypatch.setattr(owner, method, waiting)
        doors.append(door)
        return door

    yield closed
    for door in doors:
        door.set()


def prepared(make, **options):
    engine = make(options=options)
    engine.run(FIRST)
    engine.executor.blocks.forget_cached()
    return engine


def test_a_large_load_parks_its_request_and_others_go_on(make, gate):
    engine = prepared(make, async_load_tokens=64)
    door = gate(LOADS)
    parked = engine.executor.submit(SECOND)
    other = engine.executor.submit(random_tokens(50, seed=9))
    for _ in range(8):
        engine.executor.step()
    assert parked.state == "parked"
    assert not parked.logits
    assert other.request_id in engine.executor.finished
    door.set()
    engine.executor.drain()
    reference = cold("llama", SECOND)
    assert parked.generated == reference.generated
    torch.testing.assert_close(torch.stack(parked.logits), torch.stack(reference.logits))
    engine.settle()
    assert engine.records("materialized")[0]["materialized_tokens"] == LOADED


def test_an_id_is_kept_until_its_load_is_done_and_said_once(make, gate):
    engine = prepared(make, async_load_tokens=64)
    door = gate(LOADS)
    engine.executor.submit(SECOND)
    engine.executor.step()
    worker = engine.workers[0]
    for _ in range(3):
        assert worker.get_finished([], []) == ([], [])
    door.set()
    wait_for_copies(worker.side)
    saved, loaded = worker.get_finished([], [])
    assert (saved, len(loaded)) == ([], 1)
    assert worker.get_finished([], []) == ([], [])


def test_small_loads_do_not_park(make):
    engine = prepared(make, async_load_tokens=LOADED + 1)
    request = engine.executor.submit(SECOND)
    engine.executor.step()
    assert request.state == "generation"


def test_blocks_of_a_finished_request_stay_until_they_are_copied(make, gate):
    engine = make()
    door = gate(CAPTURES)
    request = engine.executor.run(FIRST, max_new_tokens=1)
    assert request.state == "saving"
    held = engine.executor.blocks.users
    assert held >= len(FIRST) // BLOCK
    for _ in range(3):
        engine.executor.step()
    assert engine.executor.blocks.users == held
    assert not engine.records("donor_registered"), "what is not copied cannot be found"
    door.set()
    engine.settle()
    assert engine.executor.blocks.users == 0
    assert len(engine.records("donor_registered")) == 1


def test_a_request_cancelled_while_it_is_parked_keeps_its_blocks_until_the_load_is_done(make, gate):
    engine = prepared(make, async_load_tokens=64)
    door = gate(LOADS)
    request = engine.executor.submit(SECOND)
    engine.executor.step()
    engine.executor.cancel(request)
    for _ in range(3):
        engine.executor.step()
    assert request.block_ids, "the thread may still write there"
    door.set()
    engine.settle()
    assert request.request_id in engine.executor.finished
    assert engine.executor.blocks.users == 0
    assert not engine.scheduler.side.relied_on
    engine.run(SECOND)  # and the engine goes on


def test_a_request_cancelled_in_its_prefill_is_no_donor(make):
    engine = make(chunk_tokens=64)
    request = engine.executor.submit(FIRST)
    engine.executor.step()
    engine.executor.cancel(request)
    engine.settle()
    assert not engine.records("donor_registered")
    assert engine.executor.blocks.users == 0


def test_a_step_that_was_not_computed_leaves_no_donor(make):
    engine = make()
    request = engine.executor.submit(FIRST)
    forward = engine.executor.paged.forward

    def broken(*_):
        raise RuntimeError("out of memory")

    engine.executor.paged.forward = broken
    with pytest.raises(RuntimeError, match="out of memory"):
        engine.executor.step()
    engine.executor.paged.forward = forward
    engine.executor.cancel(request)
    engine.settle()
    engine.run(random_tokens(60, seed=4))
    tokens = [one["tokens"] for one in engine.records("donor_registered")]
    assert len(FIRST) not in tokens


def test_donors_make_room_within_their_bytes_and_stay_whole(make):
    engine = make(options={"host_donor_bytes": 2 << 20})
    side = engine.workers[0].side
    for seed in range(12):
        engine.run(random_tokens(200, seed=100 + seed))
        held = side.parts.donors.tiers.memory[0]
        assert held.used_bytes <= 2 << 20
        budget = engine.scheduler.side.room.budget
        assert budget.used_bytes == held.used_bytes, "the leader counts as the ranks do"
    kept = engine.scheduler.side.planner.pipeline.stats().donors
    assert 0 < kept < 12
    engine.executor.blocks.forget_cached()
    newest = random_tokens(200, seed=111)
    request = engine.run(newest)
    assert engine.records("materialized")
    assert request.generated == cold("llama", newest).generated


def test_a_donor_an_offer_relies_on_does_not_make_room(make, gate):
    engine = make(options={"host_donor_bytes": 2 << 20, "async_load_tokens": 16})
    engine.run(FIRST)
    engine.executor.blocks.forget_cached()
    door = gate(LOADS)
    parked = engine.executor.submit(SECOND)
    engine.executor.step()
    for seed in range(8):
        engine.executor.run(random_tokens(300, seed=200 + seed))
        engine.workers[0].side.parts.captures.wait()
    door.set()
    engine.settle()
    assert parked.generated == cold("llama", SECOND).generated
    assert engine.records("materialized")[0]["materialized_tokens"] == LOADED


def test_a_failed_exact_load_stops_the_step_rather_than_answering_wrongly(make):
    engine = prepared(make)
    engine.executor.submit(SECOND)
    with planted("copy:1:1"), pytest.raises(LoadFailedError, match="cannot be told"):
        engine.executor.step()


def test_a_failed_capture_is_a_donor_the_less(make):
    engine = make()
    with planted("capture"):
        request = engine.run(FIRST)
    assert request.generated == cold("llama", FIRST).generated
    assert engine.records("donor_registration_failed")
    assert engine.executor.blocks.users == 0
    assert len(engine.scheduler.side.room.budget) == 0
    engine.run(FIRST)
    assert len(engine.records("donor_registered")) == 1, "and the next one is kept"


def test_a_request_that_is_asked_about_again_holds_its_donor_once(make):
    """A cache that destroys an allocation asks anew when it replays the request."""
    engine = prepared(make)
    request = engine.executor.submit(SECOND)
    request.added = True
    for _ in range(2):
        assert engine.scheduler.get_num_new_matched_tokens(request, 0) == (LOADED, False)
    budget = engine.scheduler.side.room.budget
    engine.scheduler.request_finished(request, [])
    assert not any(budget.is_pinned(donor) for donor in list(budget._donors))


def test_the_same_prompt_is_kept_once(make):
    engine = make()
    for _ in range(3):
        engine.run(FIRST)
    assert len(engine.records("donor_registered")) == 1


def test_a_lookup_that_breaks_behind_its_offer_loads_and_counts_nothing(make, monkeypatch):
    engine = prepared(make)
    side = engine.scheduler.side
    with monkeypatch.context() as broken:
        broken.setattr(side, "_looked_up", lambda *_: 1 / 0)
        request = engine.run(SECOND)
    assert request.generated == cold("llama", SECOND).generated
    assert not engine.records("plan_dispatched")
    assert engine.ledger.totals().tokens["materialised"] == 0
    assert not side.relied_on
    assert not side.room.budget._pins


def test_an_offer_that_is_never_allocated_keeps_no_donor(make):
    engine = prepared(make)
    request = engine.executor.submit(SECOND)
    request.added = True
    scheduler, side = engine.scheduler, engine.scheduler.side
    assert scheduler.get_num_new_matched_tokens(request, 0) == (LOADED, False)
    scheduler.build_connector_meta(SimpleNamespace(new_requests=[], cached_requests=[]))
    assert not scheduler.request_finished(request, [])
    assert not side.shared.requests
    assert not side.room.budget._pins
    assert engine.ledger.totals().reasons["cancelled"] == 1


def test_an_offer_that_is_taken_too_late_stops_the_step(make):
    """Its claim is gone and the engine counts on it: nothing is answered on what is not there."""
    engine = prepared(make)
    side = engine.scheduler.side
    build, orders = side.build_meta, SimpleNamespace(new_requests=[], cached_requests=[])
    allocated = side.allocated

    def late(request, block_ids):
        build(orders)
        allocated(request, block_ids)

    side.allocated = late
    engine.executor.submit(SECOND)
    with pytest.raises(LoadFailedError):
        engine.executor.step()
    side.settle()
    assert not side.relied_on
    assert engine.ledger.totals().tokens["materialised"] == 0


def test_no_rank_makes_room_by_itself(make):
    """A donor that an offer relies on may be anyone's least recently used."""
    engine = make(options={"host_donor_bytes": 1 << 20})
    engine.run(FIRST)
    (tier,) = engine.workers[0].side.parts.donors.tiers.memory
    room = tier.capacity_bytes - tier.used_bytes
    kv = torch.zeros(1, 2, room // 8 + 1, 1, 1)
    tokens = np.arange(kv.shape[2], dtype=np.int32)
    (key,) = SegmentKey.chain(b"n" * 16, tokens, [0, len(tokens)])
    with pytest.raises(CapacityError):
        tier.put(Segment(key=key, kv=kv))
    assert len(engine.workers[0].side.parts.donors) == 1
