"""Nothing an engine says of its cache is missed without being noticed."""

from types import SimpleNamespace

import pytest

pytest.importorskip("msgpack")
pytest.importorskip("zmq")

from semblend.core.errors import SettingsError
from semblend.fleet.residency.cache_follower import CacheFeed, CacheFollower
from semblend.serve.gateway.options import GatewayOptions, parse_feed
from tests.fleet.cache_relay import Relay
from tests.fleet.support import until


def stored(*hashes):
    return ["BlockStored", list(hashes), None, [], 16, None, "GPU"]


@pytest.fixture(params=[True, False], ids=["topic in replay", "older replay"])
def followed(request, tmp_path):
    """A relay, its follower, and what the follower told: hashes, "started", "missed"."""
    relay = Relay(tmp_path, topic_in_replay=request.param)
    feed = CacheFeed(
        worker_id="w", endpoint=relay.endpoint, replay_endpoint=relay.replay, check_s=0.05
    )
    told = []
    follower = CacheFollower(
        feed,
        apply=lambda _, batch: told.extend(h for e in batch.events for h in e.hashes),
        started=lambda _: told.append("started"),
        missed=lambda _: told.append("missed"),
    )
    yield SimpleNamespace(relay=relay, follower=follower, told=told)
    follower.close()
    relay.close()


def test_who_comes_late_hears_everything_from_the_beginning(followed):
    for number in range(5):
        followed.relay.send(stored(number), lost=True)
    until(lambda: followed.told == ["started", 0, 1, 2, 3, 4], "the past")
    assert followed.follower.gaps == 0


def test_a_lost_batch_is_fetched_also_if_nothing_comes_after_it(followed):
    followed.relay.send(stored(0))
    until(lambda: followed.told == ["started", 0], "the first batch")
    followed.relay.send(stored(1), lost=True)
    until(lambda: followed.told == ["started", 0, 1], "the last batch, which was lost")
    followed.relay.send(stored(2), lost=True)
    followed.relay.send(stored(3))
    until(lambda: followed.told == ["started", 0, 1, 2, 3], "the batch before")
    assert followed.follower.gaps == 0
    assert followed.follower.replayed >= 2


def test_what_the_engine_has_forgotten_is_said_to_be_missed(followed):
    followed.relay.send(stored(0))
    until(lambda: followed.told == ["started", 0], "the first batch")
    followed.relay.silent = True
    followed.relay.send(stored(1), lost=True)
    followed.relay.send(stored(2), lost=True)
    del followed.relay.buffer[:2]
    followed.relay.silent = False
    followed.relay.send(stored(3))
    until(lambda: followed.told == ["started", 0, "missed", 2, 3], "what is left")


@pytest.mark.parametrize("quiet", [True, False])
def test_an_engine_that_starts_again_begins_with_nothing(followed, quiet):
    for number in range(3):
        followed.relay.send(stored(number))
    until(lambda: followed.told == ["started", 0, 1, 2], "the first life")
    followed.told.clear()
    followed.relay.restart()
    # Whether it says something we hear, or is only asked.
    followed.relay.send(stored(10), lost=True)
    followed.relay.send(stored(11), lost=quiet)
    until(lambda: followed.told[-3:] == ["started", 10, 11], "the second life")
    assert followed.told[0] == "missed"


def test_a_batch_that_cannot_be_read_is_missed_once(followed):
    followed.relay.send(stored(0))
    until(lambda: followed.told == ["started", 0], "the first batch")
    followed.relay.send("nonsense")
    followed.relay.send(stored(2))
    until(lambda: followed.told == ["started", 0, "missed", 2], "the batch after")


def test_a_silent_engine_is_counted_and_nothing_is_forgotten(followed):
    followed.relay.send(stored(0))
    until(lambda: followed.told == ["started", 0], "the first batch")
    followed.relay.silent = True
    object.__setattr__(followed.follower.feed, "replay_timeout_s", 0.1)
    until(lambda: followed.follower.unanswered, "an answer that does not come")
    assert followed.told == ["started", 0]


@pytest.mark.parametrize(
    ("text", "feed"),
    [
        ("a=tcp://h:1", CacheFeed(worker_id="a", endpoint="tcp://h:1")),
        (
            "a=bind:tcp://*:1,ipc:///x",
            CacheFeed(worker_id="a", endpoint="tcp://*:1", replay_endpoint="ipc:///x", bind=True),
        ),
        *((text, None) for text in ("a", "a=", "=tcp://h:1", "a=http://h", "a=tcp://h:1,h:2")),
    ],
)
def test_feeds_are_read_or_refused_by_name(text, feed):
    if feed is None:
        with pytest.raises(SettingsError, match="kv-events"):
            parse_feed(text)
        return
    assert parse_feed(text) == feed
    workers = (("a", "http://h"),)
    assert GatewayOptions(workers=workers, feeds=(feed,)).feeds == (feed,)
    with pytest.raises(SettingsError, match="not one of the workers"):
        GatewayOptions(workers=(("b", "http://h"),), feeds=(feed,))
