"""Device over host over disk: what was put is read back bit for bit, or it is a miss."""

from __future__ import annotations

import errno
import random
import shutil
import tempfile
import threading
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from semblend.core.errors import DonorError, StorageError
from semblend.kv.segments import SegmentKey
from semblend.kv.tiers import DiskTier, Lease, MemoryTier, TierStack, segment_file
from tests.kv.segments import FILE_BYTES, SEGMENT_BYTES, key_of, same_kv, segment_of


def make_stack(folder: Path | None, *, device: int = 2, host: int = 2, disk: int = 4) -> TierStack:
    return TierStack(
        memory=(
            MemoryTier.on_device(capacity_bytes=device * SEGMENT_BYTES, device="cpu"),
            MemoryTier.on_host(capacity_bytes=host * SEGMENT_BYTES, pinned=False),
        ),
        disk=None if folder is None else DiskTier(folder, capacity_bytes=disk * FILE_BYTES),
    )


def counts(stack: TierStack) -> list[int]:
    return [tier.segments for tier in stack.stats()]


def test_segments_fall_from_tier_to_tier_and_the_last_loss_is_told(tmp_path) -> None:
    lost: list[SegmentKey] = []
    with make_stack(tmp_path) as stack:
        stack.add_eviction_listener(lost.append)
        for number in range(10):
            assert stack.put(segment_of(number)) == "device"
        assert counts(stack) == [2, 2, 4]
        assert lost == [key_of(0), key_of(1)]
        assert all((key_of(number) in stack) == (number >= 2) for number in range(10))


@pytest.mark.parametrize("number", [0, 2, 4], ids=["disk", "host", "device"])
def test_a_segment_climbs_to_the_device_from_wherever_it_is(tmp_path, number) -> None:
    with make_stack(tmp_path) as stack:
        for other in range(6):
            stack.put(segment_of(other))
        with stack.acquire(key_of(number)) as lease:
            assert lease.tier == "device"
            assert same_kv(lease.segment, segment_of(number))
        assert all(tier.leased == 0 for tier in stack.stats())


def test_a_segment_too_large_for_one_tier_lands_in_the_next(tmp_path) -> None:
    with make_stack(tmp_path, device=1, host=3, disk=9) as stack:
        big, huge = segment_of(1, tokens=12), segment_of(2, tokens=24)
        assert stack.put(big) == "host"
        assert stack.put(huge) == "disk"
        assert stack.put(segment_of(3, tokens=400)) is None
        with stack.acquire(big.key) as lease:
            assert lease.tier == "host"
        assert stack.acquire(huge.key) is None  # It fits no memory: a miss, not an overrun.
        assert huge.key in stack


def test_leased_segments_are_not_pushed_out_by_any_number_of_others(tmp_path) -> None:
    with make_stack(tmp_path) as stack:
        stack.put(segment_of(0))
        stack.put(segment_of(1))
        with stack.acquire(key_of(0)) as first, stack.acquire(key_of(1)) as second:
            names = [stack.put(segment_of(number)) for number in range(2, 9)]
            assert names == ["host"] * 7
            assert same_kv(first.segment, segment_of(0))
            assert same_kv(second.segment, segment_of(1))


def test_a_corrupt_host_copy_is_replaced_by_the_one_on_disk(tmp_path) -> None:
    with make_stack(tmp_path, device=0, host=1) as stack:
        stack.put(segment_of(0))
        stack.put(segment_of(1))  # Segment 0 falls to the disk.
        with stack.acquire(key_of(0)) as lease:
            held = lease.segment.kv
        held.view(torch.int16)[0, 0, 0, 0, 0] ^= 64
        with stack.acquire(key_of(0)) as lease:
            assert same_kv(lease.segment, segment_of(0))
        assert stack.stats()[1].corrupt == 1


def test_what_is_leased_unchecked_is_found_corrupt_when_asked_and_is_lost_then() -> None:
    lost: list[SegmentKey] = []
    stack = TierStack(memory=[MemoryTier.on_host(capacity_bytes=2 * SEGMENT_BYTES, pinned=False)])
    stack.add_eviction_listener(lost.append)
    stack.put(segment_of(0))
    stack.put(segment_of(1))
    good, bad = (stack.acquire(key_of(number), unchecked=True) for number in (0, 1))
    assert good is not None
    assert bad is not None
    bad.segment.kv.view(torch.int16)[0, 0, 0, 0, 0] ^= 64
    assert stack.is_sound(good)
    assert not stack.is_sound(bad)
    assert lost == [key_of(1)]
    assert stack.stats()[0].corrupt == 1
    good.release()
    bad.release()
    assert stack.acquire(key_of(1)) is None
    assert stack.stats()[0].used_bytes == SEGMENT_BYTES


def test_nothing_climbs_into_a_tier_without_checks_unchecked() -> None:
    with make_stack(None, device=1, host=2) as stack:
        stack.put(segment_of(0))
        stack.put(segment_of(1))  # Segment 0 falls to the host.
        with stack.memory[1].acquire(key_of(0)) as lease:
            lease.segment.kv.view(torch.int16)[0, 0, 0, 0, 0] ^= 64
        assert stack.acquire(key_of(0), unchecked=True) is None
        assert stack.stats()[1].corrupt == 1


def test_a_corrupt_last_copy_is_a_miss_that_is_told(tmp_path) -> None:
    lost: list[SegmentKey] = []
    with make_stack(tmp_path, device=0, host=1) as stack:
        stack.add_eviction_listener(lost.append)
        stack.put(segment_of(0))
        stack.put(segment_of(1))
        path = tmp_path / segment_file.file_name(key_of(0))
        path.write_bytes(path.read_bytes()[:-1] + b"?")
        assert stack.acquire(key_of(0)) is None
        assert lost == [key_of(0)]
        assert stack.stats()[2].corrupt == 1
        assert stack.acquire(key_of(7)) is None
        assert lost == [key_of(0)]  # What was never held is not told about.


def test_a_disk_that_fails_costs_segments_and_nothing_else(tmp_path, monkeypatch) -> None:
    def fail(*args: object, **kwargs: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    lost: list[SegmentKey] = []
    with make_stack(tmp_path, device=1, host=1) as stack:
        stack.add_eviction_listener(lost.append)
        stack.put(segment_of(0))
        stack.put(segment_of(1))
        with monkeypatch.context() as patch:
            patch.setattr(segment_file.os, "write", fail)
            assert stack.put(segment_of(2)) == "device"
        assert lost == [key_of(0)]
        stack.put(segment_of(3))
        with monkeypatch.context() as patch:
            patch.setattr(segment_file.os, "readv", fail)
            assert stack.acquire(key_of(1)) is None
        with stack.acquire(key_of(1)) as lease:
            assert same_kv(lease.segment, segment_of(1))
        assert stack.stats()[2].errors == 2


def test_tainted_kv_never_enters(tmp_path) -> None:
    with make_stack(tmp_path) as stack:
        with pytest.raises(DonorError, match="tainted"):
            stack.put(segment_of(0, tainted=True))
        assert counts(stack) == [0, 0, 0]


def test_a_listener_that_fails_or_comes_back_hurts_nobody() -> None:
    stack = make_stack(None, device=1, host=1)
    told = []

    def comes_back(key: SegmentKey) -> None:
        told.append(key)
        stack.remove(key)
        stack.put(segment_of(50, tokens=1))

    def fails(key: SegmentKey) -> None:
        raise RuntimeError("listener")

    stack.add_eviction_listener(fails)
    stack.add_eviction_listener(comes_back)
    for number in range(4):
        assert stack.put(segment_of(number)) == "device"
    assert key_of(0) in told


def test_removal_is_everywhere_and_told(tmp_path) -> None:
    lost: list[SegmentKey] = []
    with make_stack(tmp_path) as stack:
        stack.add_eviction_listener(lost.append)
        for number in range(6):
            stack.put(segment_of(number))
        assert stack.remove(key_of(0))
        assert not stack.remove(key_of(0))
        assert stack.remove(key_of(5))
        assert lost == [key_of(0), key_of(5)]
        assert stack.acquire(key_of(0)) is None


def test_a_stack_without_memory_or_with_two_tiers_of_one_name_is_refused() -> None:
    with pytest.raises(StorageError, match="at least one memory tier"):
        TierStack(memory=())
    twice = MemoryTier.on_host(capacity_bytes=1, pinned=False)
    with pytest.raises(StorageError, match="distinct names"):
        TierStack(memory=(twice, twice))


class TierStackMachine(RuleBasedStateMachine):
    """Any operations and damage: right bits or a miss, caps kept, every loss told."""

    numbers = st.integers(0, 9)

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.stack = make_stack(self.folder, device=2, host=3, disk=4)
        self.stack.add_eviction_listener(self._told)
        self.alive: set[int] = set()
        self.leases: list[tuple[int, Lease]] = []
        self.numbers_by_digest = {key_of(n).digest: n for n in range(10)}

    def _told(self, key: SegmentKey) -> None:
        assert key not in self.stack
        self.alive.discard(self.numbers_by_digest[key.digest])

    @rule(number=numbers)
    def put(self, number: int) -> None:
        self.alive.add(number)
        if self.stack.put(segment_of(number)) is None and key_of(number) not in self.stack:
            self.alive.discard(number)

    @rule(number=numbers)
    def acquire(self, number: int) -> None:
        held = key_of(number) in self.stack
        lease = self.stack.acquire(key_of(number))
        if lease is not None:
            assert held
            assert same_kv(lease.segment, segment_of(number))
            self.leases.append((number, lease))

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        _, lease = self.leases.pop(data.draw(st.integers(0, len(self.leases) - 1)))
        lease.release()

    @rule(number=numbers)
    def remove(self, number: int) -> None:
        self.stack.remove(key_of(number))
        assert key_of(number) not in self.stack

    @rule(number=numbers, data=st.data())
    def damage_the_file(self, number: int, data: st.DataObject) -> None:
        path = self.folder / segment_file.file_name(key_of(number))
        if not path.exists():
            return
        content = bytearray(path.read_bytes())
        if data.draw(st.booleans()):
            content[data.draw(st.integers(0, len(content) - 1))] ^= 1
        else:
            del content[data.draw(st.integers(0, len(content) - 1)) :]
        path.write_bytes(content)

    @rule(number=numbers)
    def lose_the_file(self, number: int) -> None:
        (self.folder / segment_file.file_name(key_of(number))).unlink(missing_ok=True)

    @invariant()
    def caps_hold_and_leases_read_right(self) -> None:
        for tier in self.stack.stats():
            assert 0 <= tier.used_bytes <= tier.capacity_bytes
        assert sum(path.stat().st_size for path in self.folder.iterdir()) <= 4 * FILE_BYTES
        for number, lease in self.leases:
            assert same_kv(lease.segment, segment_of(number))
            assert any(key_of(number) in tier for tier in self.stack.memory) or (
                key_of(number) not in self.stack
            )

    @invariant()
    def every_loss_was_told(self) -> None:
        assert {n for n in range(10) if key_of(n) in self.stack} == self.alive

    def teardown(self) -> None:
        for _, lease in self.leases:
            lease.release()
        assert all(tier.leased == 0 for tier in self.stack.stats())
        for number in range(10):
            self.stack.remove(key_of(number))
        assert all(tier.used_bytes == 0 for tier in self.stack.stats())
        self.stack.close()
        shutil.rmtree(self.folder)


TestTierStack = TierStackMachine.TestCase
TestTierStack.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


def test_many_threads_read_right_bits_within_the_caps(tmp_path) -> None:
    stack = make_stack(tmp_path, device=3, host=4, disk=6)
    failures: list[str] = []
    started = threading.Barrier(4)

    def work(seed: int) -> None:
        chooser = random.Random(seed)
        held: list[tuple[int, Lease]] = []
        started.wait()
        try:
            for _ in range(250):
                number = chooser.randrange(12)
                action = chooser.random()
                if action < 0.4:
                    stack.put(segment_of(number))
                elif action < 0.45:
                    stack.remove(key_of(number))
                else:
                    lease = stack.acquire(key_of(number))
                    if lease is not None:
                        held.append((number, lease))
                while len(held) > chooser.randrange(2):
                    number, lease = held.pop(0)
                    if not same_kv(lease.segment, segment_of(number)):
                        failures.append(f"segment {number} read wrong")
                    lease.release()
                for tier in stack.stats():
                    if tier.used_bytes > tier.capacity_bytes:
                        failures.append(f"{tier.name} above its cap")
            for _, lease in held:
                lease.release()
        except Exception as error:  # A thread's failure must reach the test.
            failures.append(repr(error))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert all(tier.leased == 0 for tier in stack.stats())
    for number in range(12):
        stack.remove(key_of(number))
    assert all(tier.used_bytes == 0 for tier in stack.stats())
    stack.close()


def test_two_threads_that_want_one_file_share_one_read(tmp_path) -> None:
    stack = make_stack(tmp_path, device=0, host=2)
    for number in range(3):
        stack.put(segment_of(number))
    assert stack.disk is not None
    reading, go_on = threading.Event(), threading.Event()
    load = stack.disk.load
    reads = []

    def slow_load(key: SegmentKey, **options: object):
        reads.append(key)
        reading.set()
        assert go_on.wait(60)
        return load(key, **options)

    stack.disk.load = slow_load  # type: ignore[method-assign]
    results: list[bool] = []

    def want() -> None:
        lease = stack.acquire(key_of(0))
        results.append(lease is not None and same_kv(lease.segment, segment_of(0)))

    first = threading.Thread(target=want)
    first.start()
    assert reading.wait(60)
    second = threading.Thread(target=want)
    second.start()
    go_on.set()
    first.join()
    second.join()
    assert results == [True, True]
    assert reads == [key_of(0)]
    stack.close()
