"""Over a real nats-server: restarts, kills, slow readers and lost logs end in the truth."""

import os
import signal

import pytest

from semblend.core.errors import SettingsError
from semblend.fleet.announcer import DonorAnnouncer
from semblend.fleet.directory.directory import Directory
from semblend.fleet.directory.index import SketchIndex
from semblend.fleet.directory.log_follower import LogFollower
from semblend.fleet.events.codec import encode
from semblend.fleet.events.event_values import DonorEvicted
from semblend.fleet.keys import donor_key
from semblend.fleet.publish.jetstream import JetStreamSink
from semblend.fleet.publish.nats_link import LogOptions, NatsLink, token
from semblend.fleet.publish.publisher import PublisherOptions
from semblend.fleet.sketch import sketch
from tests.fleet.support import KEYS, NAMESPACE, SECRET, Shelf, event, prompt, until

FAST = PublisherOptions(heartbeat_s=0.1, min_resync_s=0.1, first_retry_s=0.02, last_retry_s=0.2)


class Member:
    """A worker without an engine: a shelf of donors and its announcer."""

    def __init__(self, log, name, **options):
        self.name, self.shelf = name, Shelf()
        self.announcer = DonorAnnouncer(
            self.shelf,
            JetStreamSink(log, worker_id=name),
            worker_id=name,
            secret=SECRET,
            namespace=NAMESPACE,
            options=PublisherOptions(**options) if options else FAST,
        )
        self._serial = 0

    def keep(self, count):
        for _ in range(count):
            self._serial += 1
            self.shelf.keep(f"d{self._serial}", prompt(hash((self.name, self._serial)) % 9999, 300))

    def truth(self):
        return frozenset(donor_key(self.name, 0, donor_id) for donor_id in self.shelf.held)


@pytest.fixture
def fleet(nats_server):
    log = LogOptions(url=nats_server.url, timeout_s=2.0)
    members, followers = [], []

    class Fleet:
        server = nats_server
        options = log

        def member(self, name, **options):
            members.append(Member(log, name, **options))
            return members[-1]

        def replica(self, lease_s=30.0, position=0, load=None):
            held = Directory(SketchIndex(max_donors=4096, max_postings=100_000), lease_s=lease_s)
            if load is not None:
                position = held.load(load)
            follower = LogFollower(held, log, position=position, idle_s=0.1, retry_s=0.05)
            followers.append(follower)
            return held, follower

        def knows(self, held, *who):
            expected = {(member.name, 0): member.truth() for member in who}
            until(lambda: held.donor_keys() == expected, "the directory to equal the workers")

    yield Fleet()
    for follower in followers:
        follower.close()
    for one in members:
        one.announcer.publisher.abandon()


def test_replicas_early_and_late_equal_the_workers(fleet):
    early, _ = fleet.replica()
    one, two = fleet.member("one"), fleet.member("two.with.dots")
    one.keep(300)
    two.keep(40)
    for donor_id in list(one.shelf.held)[::2]:
        one.shelf.lose(donor_id)
    fleet.knows(early, one, two)
    late, _ = fleet.replica()
    fleet.knows(late, one, two)
    found = late.lookup(sketch(next(iter(two.shelf.held.values()))[1], KEYS), KEYS.namespace_id)
    assert all(holding.worker_id == "two.with.dots" for holding in found.holdings)


def test_the_first_word_of_a_log_stays_in_it(fleet):
    """A reset is kept when what precedes it is cut, also where nothing does."""
    one = fleet.member("one")
    one.announcer.publisher.wait()
    one.keep(1)
    held, _ = fleet.replica()
    fleet.knows(held, one)
    assert held.namespace_kinds(), "the replica knows what the worker serves"
    assert not held.stats().ranks_in_doubt


def test_what_the_client_lost_on_its_last_yard_is_read_again(fleet):
    held, follower = fleet.replica()
    one = fleet.member("one")
    one.keep(3)
    fleet.knows(held, one)
    apply = follower._apply
    follower._apply = lambda messages: setattr(follower, "_apply", apply)  # and these are gone
    one.keep(2)
    until(lambda: follower._apply is apply, "messages to be lost")
    fleet.knows(held, one)
    one.keep(2)
    fleet.knows(held, one)
    assert not held.stats().gaps, "without the worker having to start anew"
    assert follower.reconnections >= 1


def test_a_nats_restart_and_a_partition_lose_nothing(fleet):
    held, _ = fleet.replica()
    one = fleet.member("one")
    one.keep(20)
    fleet.knows(held, one)
    fleet.server.stop()
    one.keep(20)
    one.shelf.lose("d1")
    fleet.server.start()
    fleet.knows(held, one)
    # A partition: the server is there and answers nobody.
    os.kill(fleet.server.pid, signal.SIGSTOP)
    one.keep(10)
    one.shelf.lose("d2")
    os.kill(fleet.server.pid, signal.SIGCONT)
    fleet.knows(held, one)


def test_a_killed_worker_is_hidden_and_its_next_life_replaces_it(fleet):
    held, _ = fleet.replica(lease_s=1.0)
    one, two = fleet.member("one"), fleet.member("two")
    one.keep(5)
    two.keep(5)
    fleet.knows(held, one, two)
    one.announcer.publisher.abandon()
    fleet.knows(held, two)
    again = fleet.member("one")
    again.keep(3)
    fleet.knows(held, again, two)


def test_an_outage_longer_than_the_queue_ends_in_a_new_start(fleet):
    held, _ = fleet.replica()
    one = fleet.member("one", queue_events=8, heartbeat_s=0.1, first_retry_s=0.02, last_retry_s=0.2)
    one.keep(4)
    fleet.knows(held, one)
    fleet.server.stop()
    one.keep(100)
    assert one.announcer.publisher.stats.overflows
    fleet.server.start()
    fleet.knows(held, one)


def test_a_forced_gap_drops_and_then_recovers(fleet):
    held, _ = fleet.replica()
    one = fleet.member("one")
    one.keep(10)
    fleet.knows(held, one)
    link = NatsLink(fleet.options)
    publisher = one.announcer.publisher
    stray = event(
        publisher._next_id + 5, DonorEvicted(donor_id="x", generation=publisher.generation), "one"
    )

    async def inject():
        stream = await link.jetstream()
        await stream.publish(fleet.options.of_rank("one", 0), encode(stray))
        await stream.publish(fleet.options.of_rank("one", 0), b"not an event at all")

    link.call(inject())
    link.close()
    until(lambda: held.stats().gaps == 1, "the gap")
    fleet.knows(held, one)


def test_a_log_lost_altogether_is_told_anew(fleet):
    held, _ = fleet.replica(lease_s=2.0)
    one = fleet.member("one")
    one.keep(10)
    fleet.knows(held, one)
    link = NatsLink(fleet.options)

    async def delete():
        stream = await link.jetstream()
        await stream.delete_stream(fleet.options.stream)

    link.call(delete())
    link.close()
    one.keep(5)
    fleet.knows(held, one)
    late, _ = fleet.replica()
    fleet.knows(late, one)


def test_a_replica_starts_from_a_snapshot_and_reads_on(fleet, tmp_path):
    held, follower = fleet.replica()
    one = fleet.member("one")
    one.keep(50)
    fleet.knows(held, one)
    held.save(tmp_path / "snapshot", position=follower.position)
    one.keep(5)
    one.shelf.lose("d3")
    back, _ = fleet.replica(load=tmp_path / "snapshot")
    fleet.knows(back, one)
    assert back.events < 20, "the log before the snapshot is not read again"


def test_a_slow_replica_is_late_and_never_wrong(fleet):
    held, _ = fleet.replica()
    one = fleet.member("one")
    with held._lock:  # what a replica busy with something else looks like
        one.keep(2000)
        for donor_id in list(one.shelf.held)[:1500]:
            one.shelf.lose(donor_id)
        assert one.announcer.publisher.wait()
    fleet.knows(held, one)


def test_subjects_are_single_tokens_that_tell_workers_apart():
    assert token("worker-1") == "worker-1"
    names = ["a.b", "a_b", "a b", "a>b"]
    assert len({token(name) for name in names}) == len(names)
    assert all("." not in token(name) for name in names)


@pytest.mark.parametrize("bad", [{"url": "nats:4222"}, {"url": "nats://x", "subject": "a.>"}])
def test_addresses_and_subjects_are_checked(bad):
    with pytest.raises(SettingsError, match="SEMBLEND_NATS"):
        LogOptions(**bad)
