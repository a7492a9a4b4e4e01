"""A donor in an engine's own cache is known exactly while every block of it is resident."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semblend.core.errors import SerialisationError
from semblend.fleet.directory.directory import Directory
from semblend.fleet.directory.index import SketchIndex
from semblend.fleet.events.event_values import DonorEvicted, EventSegment, GenerationReset
from semblend.fleet.keys import donor_key
from semblend.fleet.residency.decoding import (
    BlocksRemoved,
    BlocksStored,
    CacheBatch,
    CacheCleared,
    StoredTokens,
    decode_batch,
)
from semblend.fleet.residency.live_donors import LiveDonors
from semblend.fleet.residency.tracker import ResidencyTracker
from semblend.fleet.sealed_blocks import open_blocks, seal_blocks
from semblend.fleet.sketch import sketch
from tests.fleet.support import KEYS, SECRET, event, prompt, registered

msgpack = pytest.importorskip("msgpack")

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
                {
                    "type": "BlockStored",
                    "block_hashes": [1, 2],
                    "parent_block_hash": -1,
                    "token_ids": [7, 8, 9, 10],
                    "block_size": 2,
                    "lora_id": None,
                    "medium": "GPU",
                    "lora_name": "lora",
                    "extra_keys": [["lora", "salt"], None],
                    "group_idx": 1,
                },
                {"type": "BlockRemoved", "block_hashes": [1], "medium": "GPU"},
                {"type": "AllBlocksCleared"},
                {"type": "SomethingNew", "x": 1},
            ],
            id="maps (vLLM 0.32, SGLang 0.5.23)",
        ),
        pytest.param(
            [
                [
                    *("BlockStored", [1, 2], -1, [7, 8, 9, 10], 2, None, "GPU", "lora"),
                    *([["lora", "salt"], None], 1),
                ],
                ["BlockRemoved", [1], "GPU"],
                ["AllBlocksCleared"],
                ["SomethingNew", 1],
            ],
            id="arrays (earlier ones)",
        ),
    ],
)
def test_both_encodings_mean_the_same(events):
    decoded = decode_batch(msgpack.packb([0.5, events, 3]))
    assert decoded.dp_rank == 3
    assert decoded.time == 0.5
    content = StoredTokens(
        parent=2**64 - 1,
        token_ids=[7, 8, 9, 10],
        block_size=2,
        keys=("('lora', 'salt')", ""),
        adapter="lora",
    )
    assert decoded.events == (
        BlocksStored(hashes=(1, 2), group=1, content=content),
        removed(1, medium="GPU"),
        CacheCleared(),
    )


def test_sglang_events_without_medium_or_rank_are_read():
    payload = msgpack.packb(
        [0.5, [["BlockStored", [1], None, [7], 1, None], ["BlockRemoved", [1]]]]
    )
    assert decode_batch(payload).events == (stored(1), removed(1))


@pytest.mark.parametrize(
    "batch",
    [
        *(5, [1], [1, 2], [1, [5]], [1, [[3, []]]], [1, [["BlockStored", 4]]], [1, [], "x"]),
        ["now", []],
        [1, [{"type": "BlockRemoved", "block_hashes": ["text"]}]],
    ],
)
def test_damaged_batches_are_refused(batch):
    with pytest.raises(SerialisationError):
        decode_batch(msgpack.packb(batch))
    with pytest.raises(SerialisationError):
        decode_batch(b"\xc1")


@pytest.mark.parametrize(
    "odd",
    [
        {"block_size": 0, "token_ids": []},
        {"token_ids": [7, 8, 9]},
        {"token_ids": [7, 2**31]},
        {"token_ids": [[7, 8], [8, 9]]},
        {"extra_keys": None},
        {"extra_keys": [{b"a": [1]}, {}]},
    ],
)
def test_blocks_whose_tokens_cannot_be_told_are_stored_and_are_no_prefix(odd):
    sent = {
        "type": "BlockStored",
        "block_hashes": [1],
        "token_ids": [7, 8],
        "block_size": 2,
        "extra_keys": [None],
        **odd,
    }
    (event,) = decode_batch(msgpack.packb([0.5, [sent]])).events
    assert event == stored(1)


def tracker():
    changes, gone = [], []
    made = ResidencyTracker(
        changed=lambda name, donor, whole: changes.append((donor, whole)),
        gone=lambda name, block: gone.append(block),
    )

    def say(*events, name=NAME):
        for each in events:
            made.apply(name, each)

    return made, say, changes, gone


def test_a_donor_is_whole_exactly_while_all_its_blocks_are_there():
    made, say, changes, gone = tracker()
    say(stored(1, 2, 3))
    assert made.track(NAME, "d", [1, 2])
    assert not made.track(NAME, "e", [3, 4])
    say(removed(3))
    assert made.is_whole(NAME, "d")
    assert changes == []
    say(removed(2), stored(2))
    assert changes == [("d", False), ("d", True)]
    say(stored(4))
    assert not made.is_whole(NAME, "e")
    say(stored(3))
    assert made.is_whole(NAME, "e")
    assert gone == [3, 2]


def test_a_block_counts_while_some_medium_and_group_holds_it():
    made, say, changes, _ = tracker()
    say(stored(1), stored(1, medium="CPU"), stored(1, group=1))
    made.track(NAME, "d", [1])
    say(removed(1, medium="GPU", group=0), removed(1, medium="CPU"))
    assert not changes
    say(removed(1))
    assert changes == [("d", False)]


def test_what_the_worker_vouches_for_counts_until_it_is_removed():
    made, say, changes, _ = tracker()
    assert made.track(NAME, "d", [1, 2], vouched=True)
    say(removed(2, medium="GPU"))
    assert changes == [("d", False)]


def test_a_cleared_cache_takes_all_donors_of_the_rank_and_of_no_other():
    made, say, changes, _ = tracker()
    other = ("w", 1)
    for name in (NAME, other):
        say(stored(1), name=name)
        made.track(name, "d", [1])
    say(CacheCleared())
    assert changes == [("d", False)]
    assert not made.is_whole(NAME, "d")
    assert made.is_whole(other, "d")


@given(
    steps=st.lists(
        st.tuples(st.sampled_from("srtfc"), st.sets(st.integers(0, 5), min_size=1, max_size=3)),
        max_size=40,
    )
)
def test_any_sequence_leaves_donors_whole_as_sets_say(steps):
    """The oracle: a set of blocks, and each donor's subset of it."""
    made, say, changes, _ = tracker()
    resident, donors = set(), {}
    for number, (what, blocks) in enumerate(steps):
        match what:
            case "s":
                say(stored(*blocks))
                resident |= blocks
            case "r":
                say(removed(*blocks))
                resident -= blocks
            case "t":
                donors[str(number)] = blocks
                assert made.track(NAME, str(number), blocks) == (blocks <= resident)
            case "f" if donors:
                made.forget(NAME, donors.popitem()[0])
            case "c":
                say(CacheCleared())
                resident.clear()
        assert made.resident(NAME) == resident
        for donor, wanted in donors.items():
            assert made.is_whole(NAME, donor) == (wanted <= resident)
            told = [whole for name, whole in changes if name == donor]
            assert not told or told[-1] == (wanted <= resident)


def with_blocks(donor_id, hashes, *, sealed=True, generation=1, scheme=None):
    data = registered(donor_id, prompt(1, 600), generation=generation)
    blocks = seal_blocks(hashes, SECRET)
    if scheme is not None:
        blocks = replace(blocks, scheme=scheme)
    plain = EventSegment(start=0, end=512, digest=5, block_hashes=() if sealed else tuple(hashes))
    return replace(data, segments=(plain,), blocks=blocks if sealed else None)


class Followed:
    """A directory behind the log and one followed rank."""

    def __init__(self, *, followed=(NAME,)):
        self.directory = Directory(SketchIndex(max_donors=16, max_postings=4000), lease_s=None)
        self.live = LiveDonors(self.directory, followed=followed, secret=SECRET)
        self.asked_anew = []
        self.directory.on_doubt(self.asked_anew.append)
        self._ids = iter(range(1, 1000))
        self.say(GenerationReset(generation=1))

    def say(self, *data):
        self.live.apply([event(next(self._ids), each) for each in data])

    def hear(self, *events):
        self.live.blocks(NAME, batch(*events))

    def knows(self, *donors):
        keys = {donor_key("w", 0, donor) for donor in donors}
        found = self.directory.lookup(sketch(prompt(1, 600), KEYS, sampling=4), KEYS.namespace_id)
        assert bool(found.holdings) == bool(donors)
        return self.directory.donor_keys()[NAME] == keys


@pytest.mark.parametrize("sealed", [True, False])
def test_a_directory_speaks_of_a_donor_exactly_while_its_blocks_are_resident(sealed):
    fleet = Followed()
    fleet.live.started(NAME)
    fleet.say(with_blocks("d", [1, -2], sealed=sealed))
    assert fleet.knows(), "no block of it has been seen"
    fleet.hear(stored(1))
    assert fleet.knows()
    fleet.hear(stored(2**64 - 2))
    assert fleet.knows("d")
    fleet.hear(removed(1))
    assert fleet.knows()
    fleet.hear(stored(1))
    assert fleet.knows("d"), "the same blocks again, and the worker has taken nothing back"
    fleet.hear(removed(1))
    fleet.say(DonorEvicted(donor_id="d", generation=1))
    fleet.hear(stored(1))
    assert fleet.knows(), "the worker has taken it back"


def test_a_log_that_is_read_again_does_not_end_the_watch():
    fleet = Followed()
    fleet.live.started(NAME)
    fleet.hear(stored(1, 2))
    said = [event(1, GenerationReset(generation=1)), event(2, with_blocks("d", [1, 2]))]
    fleet.live.apply(said)
    assert fleet.knows("d")
    fleet.live.apply(said)
    fleet.hear(removed(2))
    assert fleet.knows(), "its blocks were followed no more"


def test_lost_events_hide_donors_until_the_worker_has_looked_again():
    fleet = Followed()
    fleet.live.started(NAME)
    fleet.hear(stored(1, 2, 3))
    fleet.say(with_blocks("d", [1, 2]), with_blocks("e", [2, 3]))
    assert fleet.knows("d", "e")
    fleet.live.missed(NAME)
    assert fleet.knows()
    assert fleet.asked_anew == [NAME]
    fleet.say(with_blocks("f", [1, 2]))
    assert fleet.knows(), "said before the rank was asked to look"
    fleet.say(GenerationReset(generation=2), with_blocks("d", [1, 2], generation=2))
    assert fleet.knows("d")
    fleet.hear(removed(2))
    assert fleet.knows(), "what is removed after the loss is heard"


def test_who_comes_late_believes_the_worker_and_then_hears_what_is_removed():
    fleet = Followed()
    fleet.say(with_blocks("d", [1, 2]))
    assert fleet.knows("d")
    fleet.hear(removed(2))
    assert fleet.knows()


def test_ranks_nobody_follows_are_taken_at_their_word():
    fleet = Followed(followed=())
    fleet.say(with_blocks("d", [1, 2]))
    assert fleet.knows("d")


def test_blocks_of_an_unknown_scheme_are_not_believed_to_be_there():
    fleet = Followed()
    fleet.say(with_blocks("d", [1], scheme="of tomorrow"))
    assert fleet.knows()


def test_donors_without_blocks_are_not_the_caches_business():
    fleet = Followed()
    fleet.live.started(NAME)
    fleet.say(registered("d", prompt(1, 600)))
    fleet.hear(removed(1))
    fleet.live.missed(NAME)
    assert fleet.knows("d")
    assert fleet.asked_anew == []
    fleet.say(DonorEvicted(donor_id="d", generation=1))
    assert fleet.knows()


def test_a_snapshot_is_told_anew_where_caches_are_followed(tmp_path):
    fleet = Followed()
    fleet.say(with_blocks("d", [1, 2]))
    fleet.directory.save(tmp_path / "snapshot")
    restored = Directory(SketchIndex(max_donors=16, max_postings=4000), lease_s=None)
    restored.load(tmp_path / "snapshot")
    assert restored.stats().donors == 1
    LiveDonors(restored, followed=[NAME], secret=SECRET)
    assert restored.stats().donors == 0, "its blocks are not in a snapshot"
    assert restored.stats().ranks_in_doubt == 1


def test_nobody_without_the_secret_reads_blocks_or_sees_that_two_donors_share_them():
    one, two = seal_blocks([1, 2, 3], SECRET), seal_blocks([1, 2, 3], SECRET)
    assert open_blocks(one, SECRET) == open_blocks(two, SECRET) == (1, 2, 3)
    assert open_blocks(one, b"another secret") != (1, 2, 3)
    words = [np.frombuffer(each.names, dtype="<u8") for each in (one, two)]
    assert not set(words[0].tolist()) & {*words[1].tolist(), 1, 2, 3}
