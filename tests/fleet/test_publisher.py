"""Publishing never blocks or fails a worker, and what is lost on the way is told anew."""

import threading
from collections.abc import Sequence

from semblend.fleet.announcer import DonorAnnouncer
from semblend.fleet.directory.directory import Directory
from semblend.fleet.directory.index import SketchIndex
from semblend.fleet.events.event_values import DonorEvicted, DonorRegistered, Event, GenerationReset
from semblend.fleet.keys import donor_key
from semblend.fleet.publish.bus import InProcessBus
from semblend.fleet.publish.publisher import Publisher, PublisherOptions
from semblend.fleet.sealed_blocks import open_blocks
from tests.fleet.support import NAMESPACE, SECRET, Shelf, event, prompt, until

FAST = PublisherOptions(heartbeat_s=0.02, min_resync_s=0.0, first_retry_s=0.01, last_retry_s=0.02)


def directory():
    return Directory(SketchIndex(max_donors=512, max_postings=20_000), lease_s=30.0)


def truth(*members):
    return {
        (name, 0): frozenset(donor_key(name, 0, donor_id) for donor_id in shelf.held)
        for name, shelf in members
    }


def announce(bus, name, shelf, options=FAST):
    return DonorAnnouncer(
        shelf,
        bus.sink(name),
        worker_id=name,
        secret=SECRET,
        namespace=NAMESPACE,
        options=options,
    )


def test_directories_early_and_late_know_what_workers_hold():
    bus, shelf, held = InProcessBus(), Shelf(), directory()
    bus.attach(held)
    shelf.keep("before", prompt(0, 600))
    announcer = announce(bus, "w", shelf)
    for number in range(20):
        shelf.keep(f"d{number}", prompt(number, 600))
    for number in range(0, 20, 3):
        shelf.lose(f"d{number}")
    assert announcer.publisher.wait()
    until(lambda: held.donor_keys() == truth(("w", shelf)), "the early directory")
    late = directory()
    bus.attach(late)
    until(lambda: late.donor_keys() == truth(("w", shelf)), "the late directory")
    announcer.close()
    assert held.donor_keys() == {("w", 0): frozenset()}


def test_a_donor_that_cannot_be_described_costs_nobody_elses_news():
    bus, shelf, held = InProcessBus(), Shelf(), directory()
    bus.attach(held)
    announcer = announce(bus, "w", shelf)
    shelf.keep("a", prompt(1, 600))
    assert announcer.publisher.wait()
    held_back = threading.Event()
    announcer.publisher.say(lambda: held_back.wait() and None)
    shelf.lose("a")
    shelf.keep("b", prompt(3, 600))
    announcer.publisher.say(lambda: 1 // 0)
    held_back.set()
    assert announcer.publisher.wait()
    b = donor_key("w", 0, "b")
    until(lambda: b in held.donor_keys()["w", 0], "the donor after it")
    assert donor_key("w", 0, "a") not in held.donor_keys()["w", 0], "an eviction was lost"
    announcer.close()


def test_blocks_are_announced_for_who_has_the_secret_and_missing_names_are_no_harm():
    named = {"a": [1, -2], "gone": []}
    bus, shelf, said = InProcessBus(), Shelf(), {}

    class Log:
        """Hears every event."""

        def apply(self, events):
            for each in events:
                if isinstance(each.data, DonorRegistered):
                    said[each.data.donor_id] = each.data.blocks

        def on_doubt(self, listener):
            pass

        def hear(self, beat):
            pass

    bus.attach(Log())
    announcer = DonorAnnouncer(
        shelf,
        bus.sink("w"),
        worker_id="w",
        secret=SECRET,
        blocks=named.__getitem__,
        options=FAST,
    )
    for number, donor_id in enumerate(("a", "gone", "unnamed")):
        shelf.keep(donor_id, prompt(number, 600))
    assert announcer.publisher.wait()
    assert open_blocks(said["a"], SECRET) == (1, 2**64 - 2)
    assert "gone" not in said, "the engine had let go of it"
    assert said["unnamed"] is None, "its names could not be told; it is announced all the same"
    announcer.close()


def test_a_worker_tells_its_public_namespace_and_nothing_about_tenants():
    bus, held = InProcessBus(), directory()
    bus.attach(held)
    announcer = announce(bus, "w", Shelf())
    announcer.publisher.wait()
    (parts,) = held.namespace_kinds()
    assert parts["model"] == "m"
    assert not {"tenant", "template", "cache_salt"} & set(parts)
    announcer.close()


def test_a_directory_in_doubt_gets_a_new_start():
    bus, shelf, held = InProcessBus(), Shelf(), directory()
    bus.attach(held)
    announcer = announce(bus, "w", shelf)
    shelf.keep("d", prompt(1, 600))
    announcer.publisher.wait()
    generation = announcer.publisher.generation
    # Somebody else's mistake: an id far ahead, so that all until there seem to be missing.
    held.apply([event(2**60, DonorEvicted(donor_id="x", generation=generation))])
    until(lambda: announcer.publisher.generation > generation, "a new generation")
    announcer.close()


class BrokenSink:
    """A log that cannot be reached until it is mended."""

    def __init__(self) -> None:
        self.mended = threading.Event()
        self.events: list[Event] = []

    def last_position(self, worker_id: str, dp_rank: int) -> tuple[int, int]:
        return 0, 0

    def send(self, events: Sequence[Event]) -> None:
        if not self.mended.is_set():
            raise ConnectionError("no route")
        self.events += events

    def beat(self, heartbeat):
        self.send([])

    def compact(self, reset):
        pass

    def asked_to_resync(self) -> bool:
        return False

    def close(self) -> None:
        pass


def test_an_overflowing_queue_is_thrown_away_and_everything_told_anew():
    sink, shelf = BrokenSink(), Shelf()
    options = PublisherOptions(queue_events=8, first_retry_s=0.01, last_retry_s=0.02)
    announcer = DonorAnnouncer(shelf, sink, worker_id="w", secret=SECRET, options=options)
    until(lambda: announcer.publisher.stats.failures, "its first word to fail")
    for number in range(100):
        shelf.keep(f"d{number}", prompt(number, 64))
    for number in range(90):
        shelf.lose(f"d{number}")
    assert announcer.publisher.stats.overflows
    sink.mended.set()
    assert announcer.publisher.wait()
    ids = [made.event_id for made in sink.events]
    last = max(i for i, made in enumerate(sink.events) if isinstance(made.data, GenerationReset))
    assert ids[last:] == list(range(ids[last], ids[last] + len(ids) - last)), "no gap after it"
    held = Directory(SketchIndex(max_donors=512, max_postings=20_000), lease_s=None)
    held.apply(sink.events)
    assert held.donor_keys() == truth(("w", shelf))
    announcer.publisher.abandon()


def test_a_log_that_never_answers_costs_the_worker_nothing():
    sink = BrokenSink()
    publisher = Publisher(sink, worker_id="w", options=FAST)
    for number in range(1000):
        publisher.say(DonorEvicted(donor_id=str(number), generation=0))
    until(lambda: publisher.stats.failures >= 3, "attempts")
    publisher.abandon()
    assert not sink.events


def test_a_long_log_is_compacted_to_what_is_held():
    sink, shelf = BrokenSink(), Shelf()
    sink.mended.set()
    announcer = DonorAnnouncer(shelf, sink, worker_id="w", secret=SECRET, options=FAST)
    tokens = prompt(1, 64)
    for number in range(1200):
        shelf.keep("d", tokens)
        shelf.lose("d")
        if number % 100 == 0:
            announcer.publisher.wait()
    shelf.keep("last", tokens)
    assert announcer.publisher.wait()
    resets = [made for made in sink.events if isinstance(made.data, GenerationReset)]
    assert len(resets) >= 2
    held = Directory(SketchIndex(max_donors=512, max_postings=20_000), lease_s=None)
    held.apply(sink.events)
    assert held.donor_keys() == truth(("w", shelf))
    announcer.publisher.abandon()
