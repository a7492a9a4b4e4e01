"""A donor in an engine's own cache is known exactly while every block of it is resident."""

import subprocess
from pathlib import Path

import pytest

from semblend.core.errors import SerialisationError
from semblend.fleet.directory.directory import Directory
from semblend.fleet.directory.index import SketchIndex
from semblend.fleet.events.model import (
    DonorEvicted,
    DonorRegistered,
    EventSegment,
    GenerationReset,
)
from semblend.fleet.keys import donor_key
from semblend.fleet.residency.decoding import (
    BlocksRemoved,
    BlocksStored,
    CacheBatch,
    CacheCleared,
    decode_batch,
)
from semblend.fleet.residency.follower import CacheFeed, CacheFollower
from semblend.fleet.residency.live_donors import LiveDonors
from semblend.fleet.residency.tracker import ResidencyTracker
from tests.fleet.support import KEYS, event, need_environment, prompt, registered, slow, until

msgpack = pytest.importorskip("msgpack")
zmq = pytest.importorskip("zmq")

VLLM = Path(__file__).resolve().parents[2] / ".venv-vllm" / "bin" / "python"
NAME = ("w", 0)


def batch(*events):
    return CacheBatch(events=events, dp_rank=0)


def stored(*hashes, medium="GPU", group=0):
    return BlocksStored(hashes=hashes, medium=medium, group=group)


def removed(*hashes, medium=None, group=None):
    return BlocksRemoved(hashes=hashes, medium=medium, group=group)


@pytest.mark.parametrize(
    "events",
    [
        pytest.param(
            [
                {"type": "BlockStored", "block_hashes": [1, 2], "medium": "GPU", "group_idx": 1},
                {"type": "BlockRemoved", "block_hashes": [1], "medium": "GPU"},
                {"type": "AllBlocksCleared"},
                {"type": "SomethingNew", "x": 1},
            ],
            id="maps (vLLM 0.32)",
        ),
        pytest.param(
            [
                ["BlockStored", [1, 2], None, [7, 8], 2, None, "GPU", None, None, 1],
                ["BlockRemoved", [1], "GPU"],
                ["AllBlocksCleared"],
                ["SomethingNew", 1],
            ],
            id="arrays (earlier vLLM, SGLang)",
        ),
    ],
)
def test_both_encodings_mean_the_same(events):
    decoded = decode_batch(msgpack.packb([0.5, events, 3]))
    assert decoded.dp_rank == 3
    assert decoded.events == (stored(1, 2, group=1), removed(1, medium="GPU"), CacheCleared())


def test_sglang_events_without_medium_or_rank_are_read():
    payload = msgpack.packb(
        [0.5, [["BlockStored", [1], None, [7], 1, None], ["BlockRemoved", [1]]]]
    )
    assert decode_batch(payload).events == (stored(1), removed(1))


@pytest.mark.parametrize(
    "batch",
    [
        *(5, [1], [1, 2], [1, [5]], [1, [[3, []]]], [1, [["BlockStored", 4]]], [1, [], "x"]),
        [1, [{"type": "BlockRemoved", "block_hashes": ["text"]}]],
    ],
)
def test_damaged_batches_are_refused(batch):
    with pytest.raises(SerialisationError):
        decode_batch(msgpack.packb(batch))
    with pytest.raises(SerialisationError):
        decode_batch(b"\xc1")


def tracker():
    lost, cleared = [], []
    made = ResidencyTracker(lost=lambda *a: lost.append(a), cleared=cleared.append)
    return made, lost, cleared


def test_a_donor_dies_with_its_first_block_and_stays_dead():
    made, lost, _ = tracker()
    made.apply(NAME, [stored(1, 2, 3)])
    assert made.track(NAME, "d", [1, 2])
    assert not made.track(NAME, "e", [3, 4])
    made.apply(NAME, [removed(3)])
    assert made.is_whole(NAME, "d")
    made.apply(NAME, [removed(2), stored(2)])
    assert lost == [(NAME, "d")]
    assert not made.is_whole(NAME, "d")


def test_a_block_counts_while_some_medium_and_group_holds_it():
    made, lost, _ = tracker()
    made.apply(NAME, [stored(1), stored(1, medium="CPU"), stored(1, group=1)])
    made.track(NAME, "d", [1])
    made.apply(NAME, [removed(1, medium="GPU", group=0), removed(1, medium="CPU")])
    assert not lost
    made.apply(NAME, [removed(1)])
    assert lost == [(NAME, "d")]


def test_a_cleared_cache_takes_all_donors_of_the_rank_and_of_no_other():
    made, _, cleared = tracker()
    other = ("w", 1)
    for name in (NAME, other):
        made.apply(name, [stored(1)])
        made.track(name, "d", [1])
    made.apply(NAME, [CacheCleared()])
    assert cleared == [NAME]
    assert not made.is_whole(NAME, "d")
    assert made.is_whole(other, "d")


def with_blocks(donor_id, hashes):
    data = registered(donor_id, prompt(1, 600))
    segment = EventSegment(start=0, end=512, digest=5, block_hashes=tuple(hashes))
    return DonorRegistered(
        donor_id=donor_id,
        namespace_id=KEYS.namespace_id,
        token_count=600,
        generation=1,
        segments=(segment,),
        hashes=data.hashes,
    )


def test_a_directory_speaks_of_a_donor_exactly_while_its_blocks_are_resident():
    held = Directory(SketchIndex(max_donors=16, max_postings=4000), lease_s=None)
    live = LiveDonors(held)

    def known():
        return held.donor_keys()[NAME]

    key = donor_key("w", 0, "d")
    live.apply([event(1, GenerationReset(generation=1)), event(2, with_blocks("d", [1, 2]))])
    assert known() == frozenset(), "no block of it has been seen"
    live.blocks(NAME, batch(stored(1)))
    assert known() == frozenset()
    live.blocks(NAME, batch(stored(2)))
    assert known() == {key}
    live.blocks(NAME, batch(removed(1)))
    assert known() == frozenset()
    live.blocks(NAME, batch(stored(1)))
    assert known() == frozenset(), "dead is dead until the worker says otherwise"
    live.apply([event(3, with_blocks("d", [1, 2]))])
    assert known() == {key}
    live.missed(NAME)
    assert known() == frozenset()


def test_donors_without_blocks_are_not_the_caches_business():
    held = Directory(SketchIndex(max_donors=16, max_postings=4000), lease_s=None)
    live = LiveDonors(held)
    live.apply([event(1, GenerationReset(generation=1)), event(2, registered("d", prompt(1, 600)))])
    live.blocks(NAME, batch(removed(1)))
    assert len(held.donor_keys()[NAME]) == 1
    live.apply([event(3, DonorEvicted(donor_id="d", generation=1))])
    assert not held.donor_keys()[NAME]


class Engine:
    """The sending side, with a buffer it can lose; frames as vLLM sends them."""

    def __init__(self, folder, *, topic_in_replay=True):
        self.endpoint, self.replay = f"ipc://{folder}/events", f"ipc://{folder}/replay"
        self._context = zmq.Context()
        self._pub = self._context.socket(zmq.PUB)
        self._pub.bind(self.endpoint)
        self._router = self._context.socket(zmq.ROUTER)
        self._router.bind(self.replay)
        self._topic_in_replay = topic_in_replay
        self.buffer = []
        self.number = 0

    def send(self, *events, lost=False):
        payload = msgpack.packb([0.0, list(events), 0])
        self.buffer.append((self.number, payload))
        if not lost:
            self._pub.send_multipart((b"", self.number.to_bytes(8, "big"), payload))
        self.number += 1

    def serve_replay(self):
        assert self._router.poll(5000)
        client, _, start = self._router.recv_multipart()
        for number, payload in self.buffer:
            if number >= int.from_bytes(start, "big"):
                head = (client, b"", b"") if self._topic_in_replay else (client, b"")
                self._router.send_multipart((*head, number.to_bytes(8, "big"), payload))
        self._router.send_multipart((client, b"", b"", (-1).to_bytes(8, "big", signed=True), b""))

    def close(self):
        self._pub.close(linger=0)
        self._router.close(linger=0)
        self._context.destroy(linger=0)


@pytest.mark.parametrize("topic_in_replay", [True, False])
def test_missed_batches_are_replayed_and_lost_ones_clear_the_rank(tmp_path, topic_in_replay):
    engine = Engine(tmp_path, topic_in_replay=topic_in_replay)
    made, _, cleared = tracker()
    feed = CacheFeed(worker_id="w", endpoint=engine.endpoint, replay_endpoint=engine.replay)
    follower = CacheFollower(feed, apply=lambda n, b: made.apply(n, b.events), missed=made.reset)
    try:
        until(lambda: engine.send() or follower.position >= 0 or _served(engine), "to subscribe")
        engine.send(["BlockStored", [1], None, [], 16, None, "GPU"], lost=True)
        engine.send(["BlockStored", [2], None, [], 16, None, "GPU"])
        engine.serve_replay()
        until(lambda: made.resident_blocks(NAME) == 2, "the replayed block")
        assert follower.replayed
        engine.send(["BlockStored", [3], None, [], 16, None, "GPU"], lost=True)
        engine.buffer.clear()
        engine.send(["BlockStored", [4], None, [], 16, None, "GPU"])
        engine.serve_replay()
        until(lambda: made.resident_blocks(NAME) == 1, "only what came after the gap")
        assert NAME in cleared
    finally:
        follower.close()
        engine.close()


def _served(engine):
    """A subscriber that came late asks for the beginning."""
    if engine._router.poll(20):
        engine.serve_replay()


PUBLISH = """
import sys, time
from vllm.distributed.kv_events import (AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch,
                                        ZmqEventPublisher)
folder = sys.argv[1]
publisher = ZmqEventPublisher(0, f"ipc://{folder}/events", f"ipc://{folder}/replay")
def stored(*hashes):
    return BlockStored(block_hashes=list(hashes), parent_block_hash=None, token_ids=[1] * 16,
                       block_size=16, lora_id=None, medium="GPU", lora_name=None)
publisher.publish(KVEventBatch(ts=0.0, events=[stored(1, 2, 3)]))
for line in sys.stdin:
    if line.startswith("removed"):
        events = [BlockRemoved(block_hashes=[2], medium="GPU")]
    else:
        events = [AllBlocksCleared()]
    publisher.publish(KVEventBatch(ts=0.0, events=events))
"""


@slow
def test_the_real_vllm_publisher_is_followed(tmp_path):
    need_environment(VLLM, "vLLM", "scripts/vllm_env.sh")
    made, lost, cleared = tracker()
    engine = subprocess.Popen(
        [str(VLLM), "-c", PUBLISH, str(tmp_path)],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    feed = CacheFeed(
        worker_id="w",
        endpoint=f"ipc://{tmp_path}/events",
        replay_endpoint=f"ipc://{tmp_path}/replay",
    )
    follower = CacheFollower(feed, apply=lambda n, b: made.apply(n, b.events), missed=made.reset)
    try:

        def say(word):
            engine.stdin.write(word + "\n")
            engine.stdin.flush()

        until(lambda: (tmp_path / "replay").exists() or engine.poll() is not None, "vLLM", 120)
        assert engine.poll() is None, engine.stderr.read()[-2000:]
        until(lambda: say("removed") or follower.position >= 0, "events of vLLM", 120)
        until(lambda: made.resident_blocks(NAME) == 2, "blocks 1 and 3, by replay")
        assert made.track(NAME, "d", [1, 3])
        say("cleared")
        until(lambda: cleared, "the cleared cache")
        assert not made.is_whole(NAME, "d")
        assert not lost
    finally:
        engine.kill()
        engine.communicate()
        follower.close()
