"""Donors are announced through the fleet's one publisher, if and only if it is told where."""

from __future__ import annotations

import importlib.util
import shutil

import pytest

from semblend.fleet import membership
from semblend.fleet.directory.directory import Directory
from semblend.fleet.directory.index import SketchIndex
from semblend.fleet.keys import donor_key
from semblend.fleet.publish.bus import InProcessBus
from tests.fleet.support import need, until
from tests.integration.models import random_tokens


@pytest.fixture
def fleet(monkeypatch):
    """A directory that hears what is said on the bus that stands in for NATS."""
    bus, held = InProcessBus(), Directory(SketchIndex(max_donors=64, max_postings=10_000))
    bus.attach(held)
    asked = []

    def sink(options, *, worker_id, dp_rank):
        asked.append((options.url, options.subject))
        return bus.sink(worker_id)

    monkeypatch.setattr(membership, "JetStreamSink", sink)
    monkeypatch.setenv("SEMBLEND_NATS_URL", "nats://nats.example:4222")
    monkeypatch.setenv("SEMBLEND_NATS_SUBJECT", "semantic-kv-events")
    monkeypatch.setenv("SEMBLEND_WORKER_ID", "trt-0")
    monkeypatch.setenv("SEMBLEND_DONOR_TENANT", "acme")
    monkeypatch.setenv("SEMBLEND_DONOR_TEMPLATE", "rag-v1")
    return held, asked


def test_donors_are_announced_and_their_tenant_is_in_their_namespace(make, fleet, monkeypatch):
    held, asked = fleet
    monkeypatch.setenv("SEMBLEND_NAMESPACE_SECRET", "the secret of this fleet")
    engine = make()
    assert asked == [("nats://nats.example:4222", "semantic-kv-events")]
    assert engine.records("contract_event_published")[0]["kind"] == "provider_generation_reset"
    namespace = engine.scheduler.side.setup.scheduler.namespace
    assert (namespace.tenant, namespace.template) == ("acme", "rag-v1")
    engine.run(random_tokens(200, seed=1))
    donor_id = engine.records("donor_registered")[0]["donor_id"]
    expected = {("trt-0", 0): frozenset({donor_key("trt-0", 0, donor_id)})}
    until(lambda: held.donor_keys() == expected, "the directory")
    assert engine.records("contract_event_published")[1]["donor_id"] == donor_id


def test_a_directory_hears_of_donors_over_a_real_nats_server(make, monkeypatch, tmp_path):
    need(shutil.which("nats-server"), "nats-server")
    need(importlib.util.find_spec("nats"), "nats-py")
    from semblend.fleet.directory.log_follower import LogFollower
    from semblend.fleet.publish.nats_link import LogOptions
    from tests.fleet.conftest import NatsServer

    server = NatsServer(tmp_path / "jetstream")
    held = Directory(SketchIndex(max_donors=64, max_postings=10_000))
    follower = None
    try:
        monkeypatch.setenv("SEMBLEND_NATS_URL", server.url)
        monkeypatch.setenv("SEMBLEND_NAMESPACE_SECRET", "the secret of this fleet")
        monkeypatch.setenv("SEMBLEND_WORKER_ID", "trt-1")
        engine = make()
        engine.run(random_tokens(200, seed=1))
        donor_id = engine.records("donor_registered")[0]["donor_id"]
        log = LogOptions(url=server.url, timeout_s=2.0)
        follower = LogFollower(held, log, idle_s=0.1, retry_s=0.05)
        expected = {("trt-1", 0): frozenset({donor_key("trt-1", 0, donor_id)})}
        until(lambda: held.donor_keys() == expected, "the directory")
        engine.scheduler.announcer.close()
        engine.scheduler.announcer = None
    finally:
        if follower is not None:
            follower.close()
        server.stop()


def test_a_fleet_that_cannot_be_joined_is_no_reason_not_to_serve(make, fleet, monkeypatch):
    monkeypatch.setenv("SEMBLEND_NAMESPACE_SECRET", "too short")
    engine = make()
    assert engine.scheduler.announcer is None
    engine.run(random_tokens(200, seed=1))
    assert engine.records("donor_registered")


def test_without_an_address_nothing_is_announced(make):
    assert make().scheduler.announcer is None


def test_an_engine_with_an_unknown_part_announces_nothing(make, fleet, monkeypatch):
    monkeypatch.setenv("SEMBLEND_NAMESPACE_SECRET", "the secret of this fleet")
    assert make(args={"tensor_parallel_size": None}).scheduler.announcer is None
