"""Faults between workers: a fleet that fails is no fleet, and never a wrong or a lost answer.

Two embedded engines share donors through a folder and tell each other over a bus in this
process. What one computed the other fetches; whatever fails on the way, it computes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from semblend.core.faults import CLOCK_JUMP_S, FaultPoint, planted
from semblend.core.outcomes import DeclineReason, Outcome
from semblend.engine.handle import GenerationResult
from semblend.fleet.announcer import DonorAnnouncer
from semblend.fleet.directory.directory import Directory
from semblend.fleet.placement.expected_time import FleetCost
from semblend.fleet.publish.bus import InProcessBus
from semblend.fleet.publish.publisher import PublisherOptions
from semblend.fleet.transport.exporting import DonorExporter
from semblend.fleet.transport.folder import FolderStore
from semblend.fleet.transport.importing import DonorImporter
from semblend.fleet.transport.shelf import SharedShelf
from tests.certificates import certificate_of, write
from tests.engine.conftest import REUSING, Driver, EngineMaker, same
from tests.engine.models import tiny
from tests.engine.test_engine import behind
from tests.fleet.support import until
from tests.reliability.fault_results import record

SECRET = b"test"  # as REUSING's
DONOR, TARGET = behind(1), behind(5)
SLOW_PREFILL = FleetCost(seconds_per_token=1e-2, kv_bytes_per_token=1000, transfer_bytes_per_s=1e9)
FAST = PublisherOptions(heartbeat_s=0.05, min_resync_s=0.05, first_retry_s=0.01, last_retry_s=0.05)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    giver: Driver
    taker: Driver
    announcer: DonorAnnouncer
    exporter: DonorExporter
    shelf: SharedShelf
    importer: DonorImporter
    directory: Directory
    folder: Path

    def give(self, *, settled: bool = True) -> None:
        """The giver computes the donor and shares it."""
        self.giver.run(DONOR)
        self.exporter.wait()
        assert self.announcer.publisher.wait(30.0 if settled else 0.2) is settled

    def take(self) -> GenerationResult:
        """The taker answers the target, with what it can fetch."""
        self.importer.prepare(TARGET, self.taker.engine.namespace())
        return self.taker.run(TARGET, donate=False)


@pytest.fixture
def fleet(make_engine: EngineMaker, tmp_path: Path) -> Iterator[Fleet]:
    with ExitStack() as ending:
        giver, taker = make_engine(), make_engine()
        bus, directory = InProcessBus(), Directory()
        bus.attach(directory)
        announcer = DonorAnnouncer(
            giver.engine.donors,
            bus.sink("giver"),
            worker_id="giver",
            secret=SECRET,
            sampling=1,
            options=FAST,
        )
        ending.callback(announcer.close)
        store = FolderStore(tmp_path)
        shelf = SharedShelf(store, max_bytes=1 << 24, ttl_s=3600.0)
        exporter = DonorExporter(
            giver.engine.donors, shelf, announcer, worker_id="giver", secret=SECRET
        )
        ending.callback(exporter.close)
        importer = DonorImporter(
            taker.engine.donors,
            store,
            directory,
            worker_id="taker",
            secret=SECRET,
            cost=SLOW_PREFILL,
            sampling=1,
        )
        yield Fleet(
            giver=giver,
            taker=taker,
            announcer=announcer,
            exporter=exporter,
            shelf=shelf,
            importer=importer,
            directory=directory,
            folder=tmp_path,
        )


def assert_computed(fleet: Fleet, reason: DeclineReason = DeclineReason.NO_MATCH) -> None:
    """The taker fetches nothing and answers as cold."""
    answer = fleet.take()
    assert answer.report.reused_tokens == 0
    assert answer.report.reason is reason
    assert same(answer, fleet.taker.cold(TARGET))
    assert len(fleet.taker.engine.donors) == 0
    assert fleet.taker.engine.stats().tier_bytes["host"] == 0


def assert_fetched(fleet: Fleet) -> None:
    """The taker fetches the donor and reuses it."""
    fleet.taker.engine.flush_prefix_cache()
    # Donors are visible from a heartbeat on, which comes behind the news of them.
    until(lambda: fleet.directory.donor_keys().get(("giver", 0)), "the giver to be heard")
    assert fleet.take().report.outcome is Outcome.MATERIALISED


def test_without_a_fault_the_donor_is_fetched(fleet: Fleet) -> None:
    fleet.give()
    assert_fetched(fleet)


def test_a_store_that_cannot_be_written_shares_nothing(fleet: Fleet) -> None:
    with planted("transport_write") as faults:
        fleet.give()
    assert faults.fired[FaultPoint.TRANSPORT_WRITE]
    assert (fleet.shelf.used_bytes, len(fleet.shelf), os.listdir(fleet.folder)) == (0, 0, [])
    assert_computed(fleet)
    fleet.giver.engine.drop_donors()
    fleet.give()
    assert_fetched(fleet)
    record("embedded", FaultPoint.TRANSPORT_WRITE, "cold: no_match")


def test_a_store_that_cannot_be_read_is_a_miss(fleet: Fleet) -> None:
    fleet.give()
    with planted("transport_read") as faults:
        assert_computed(fleet)
    assert faults.fired[FaultPoint.TRANSPORT_READ]
    assert_fetched(fleet)
    record("embedded", FaultPoint.TRANSPORT_READ, "cold: no_match")


def test_a_read_that_fails_half_way_leaves_no_half_donor(fleet: Fleet) -> None:
    fleet.give()
    with planted("allocation"):  # the manifest is there, its segments find no memory
        assert_computed(fleet)
    assert_fetched(fleet)


def test_a_log_that_cannot_be_reached_is_caught_up_with(fleet: Fleet) -> None:
    assert fleet.announcer.publisher.wait()
    with planted("event_bus") as faults:
        fleet.give(settled=False)
        assert_computed(fleet)
    assert faults.fired[FaultPoint.EVENT_BUS]
    assert fleet.announcer.publisher.wait()
    assert_fetched(fleet)
    record("embedded", FaultPoint.EVENT_BUS, "cold: no_match")


def test_threads_that_are_struck_down_go_on(fleet: Fleet) -> None:
    with planted("killed_worker"):
        fleet.giver.run(DONOR)
        # What the library would have said, had its own thread not been struck down first.
        fleet.exporter.donor_kept("unknown", DONOR, fleet.giver.engine.namespace())
        fleet.exporter.wait()
        assert_computed(fleet)
        fleet.announcer.publisher.resync()
        while not fleet.announcer.publisher.stats.failures:
            fleet.announcer.publisher.wait(0.05)
    assert (len(fleet.giver.engine.donors), fleet.exporter.skipped) == (0, 1)
    fleet.give()
    assert_fetched(fleet)


def test_a_clock_that_jumps_loses_no_donor(fleet: Fleet) -> None:
    with planted("clock") as faults:
        fleet.announcer.publisher.resync()
        fleet.give()
        fleet.announcer.publisher.resync()
        assert fleet.announcer.publisher.wait()
    assert faults.fired[FaultPoint.CLOCK] >= 2, "ahead and back again"
    assert_fetched(fleet)


def test_a_clock_that_jumps_forth_leaves_no_certificate_standing(
    make_engine: EngineMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny("llama-gqa")[0]
    write(tmp_path, certificate_of(model.fingerprint, policy="none"))
    settings = REUSING.model_copy(
        update={"allow_uncertified": False, "certificate_dir": str(tmp_path)}
    )
    certified = make_engine(settings=settings)
    with planted("clock:1:1") as faults:
        driver = make_engine(settings=settings)
    assert faults.fired[FaultPoint.CLOCK] == 1
    for one in (certified, driver):
        one.run(DONOR)
    assert certified.run(TARGET).report.outcome is Outcome.MATERIALISED
    answer = driver.run(TARGET)
    assert answer.report.reason is DeclineReason.CERTIFICATE_EXPIRED
    assert same(answer, driver.cold(TARGET))
    certified.engine.flush_prefix_cache()
    # A jump that lasts: donors look at the clock too, in idle time.
    monkeypatch.setattr("semblend.pipeline.clock_jump_s", lambda: CLOCK_JUMP_S)
    outlived = certified.run(TARGET)
    assert outlived.report.reason is DeclineReason.CERTIFICATE_EXPIRED
    assert same(outlived, driver.cold(TARGET))
    record("embedded", FaultPoint.CLOCK, "discovery_only: certificate_expired")
