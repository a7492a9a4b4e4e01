"""Random histories over pipeline, tiers and ledger, checked against a model after every step.

The laws, in words. A plan names only donors that are held, of its own namespace, and only
tokens that are equal; a run of 32 shared tokens is always found. A donor that can be found
can be loaded, bit for bit as it was computed, or is gone on both sides from then on. Bytes
stay below their caps, nothing stays leased, and every request is in the ledger exactly once,
its tokens adding up to its prompt.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from semblend.core.errors import DonorError, StorageError
from semblend.core.faults import FaultPoint, InjectedError, planted
from semblend.core.namespace import Namespace
from semblend.core.outcomes import DeclineReason, Outcome
from semblend.core.plan import Plan
from semblend.core.settings import EmbedderKind, Settings
from semblend.core.tokens import TokenArray
from semblend.engine.cache.donor_library import DonorLibrary
from semblend.engine.cache.pool import KvShape, PagedPool
from semblend.kv.segments import Segment, SegmentKey, kv_bytes
from semblend.kv.tiers import DiskTier, MemoryTier, TierStack
from semblend.pipeline import SemBlendPipeline
from tests.oracles.matching import covered_positions

SHAPE = KvShape(layers=1, kv_heads=1, head_dim=4, dtype=torch.float32)
_NUMBERS = np.random.default_rng(7)
DOCUMENTS = [
    _NUMBERS.integers(0, 30_000, size).astype(np.int32) for size in (40, 64, 120, 300, 700)
]
NAMESPACES = [Namespace.of(model="m", tenant=tenant) for tenant in ("a", "b")]
HOST_BYTES, DISK_BYTES = SHAPE.token_bytes * 1500, SHAPE.token_bytes * 3000
INDEX_BYTES = 1 << 17
TIER_FAULTS = (
    FaultPoint.TIER_READ,
    FaultPoint.TIER_WRITE,
    FaultPoint.CHECKSUM,
    FaultPoint.DISK_READ,
    FaultPoint.DISK_FULL,
    FaultPoint.ALLOCATION,
    FaultPoint.INDEX_WRITE,
    FaultPoint.INDEX_READ,
    FaultPoint.PLAN,
    FaultPoint.LEASE,
)
documents = st.lists(st.sampled_from((2, 3, 0, 1, 2, 3, 4)), min_size=1, max_size=3)
namespaces = st.sampled_from((0, 0, 0, 1))


def prompt_of(head: int, parts: list[int]) -> TokenArray:
    """A head of its own, then documents."""
    own = np.random.default_rng(head).integers(30_000, 60_000, 20).astype(np.int32)
    return np.concatenate([own, *(DOCUMENTS[part] for part in parts)])


def exact_kv(key: SegmentKey) -> torch.Tensor:
    """What "computing" a segment gives: follows from its key alone."""
    generator = torch.Generator().manual_seed(int.from_bytes(key.digest[:6], "little"))
    return torch.randn(1, 2, key.length, 1, 4, generator=generator)


class Histories(RuleBasedStateMachine):
    """One engine's donors and requests, without the engine."""

    @initialize()
    def start(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.known: dict[str, tuple[TokenArray, Namespace]] = {}
        self.open: dict[str, Plan] = {}
        self.prompts = 0
        self.serial = 0
        self.settled: Counter[Outcome] = Counter()
        self.materialised = 0
        self._open_all()
        self.keep(0, [0, 1, 2, 3], 0, None)

    def _open_all(self) -> None:
        self.pipeline = SemBlendPipeline(
            Settings(
                embedder=EmbedderKind.NONE,
                allow_uncertified=True,
                recompute_policy="none",
                namespace_secret="machine",
                max_donor_bytes=INDEX_BYTES,
            )
        )
        self.tiers = TierStack(
            [MemoryTier.on_host(capacity_bytes=HOST_BYTES, pinned=False)],
            DiskTier(self.folder, capacity_bytes=DISK_BYTES),
        )
        pool = PagedPool(
            SHAPE, capacity_bytes=SHAPE.token_bytes * 8, page_size=8, device=torch.device("cpu")
        )
        self.library = DonorLibrary(pool=pool, pipeline=self.pipeline, tiers=self.tiers, queued=1)

    def teardown(self) -> None:
        if hasattr(self, "library"):
            self.library.close()
            self.tiers.close()
            self.pipeline.close()
            shutil.rmtree(self.folder)

    # -- donors ------------------------------------------------------------------------

    @rule(head=st.integers(0, 20), parts=documents, where=namespaces, fault=st.none())
    def keep(self, head: int, parts: list[int], where: int, fault: FaultPoint | None) -> None:
        """A request was computed exactly: it becomes a donor."""
        tokens, namespace = prompt_of(head, parts), NAMESPACES[where]
        self.serial += 1
        donor_id = f"d{self.serial}"

        def read(key: SegmentKey) -> Segment:
            return Segment(key=key, kv=exact_kv(key))

        try:
            with planted("" if fault is None else f"{fault}:0.5", seed=self.serial):
                held = self.library.adopt(donor_id, tokens, namespace, read)
        except (DonorError, StorageError, MemoryError, InjectedError):
            held = False
        if held:
            self.known[donor_id] = (tokens, namespace)
        assert held == self.pipeline.holds(donor_id)

    @rule(
        head=st.integers(0, 20),
        parts=documents,
        where=namespaces,
        fault=st.sampled_from(TIER_FAULTS),
    )
    def keep_with_a_fault(self, head: int, parts: list[int], where: int, fault: FaultPoint) -> None:
        self.keep(head, parts, where, fault)

    @precondition(lambda self: self.known and self.serial % 4 == 0)
    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        donor_id = data.draw(st.sampled_from(sorted(self.known)))
        self.library._drop(donor_id)
        del self.known[donor_id]

    @precondition(lambda self: self.serial % 11 == 10)  # seldom: it ends what others began
    @rule()
    def forget_all(self) -> None:
        self.library.clear()
        self.known.clear()

    # -- what goes wrong by itself -------------------------------------------------------

    @rule(data=st.data())
    def rot(self, data: st.DataObject) -> None:
        """A bit flips in memory, or in a file, or a file vanishes."""
        keys = self.tiers.memory[0].keys()
        if keys and data.draw(st.booleans()):
            # Behind the tier's back: asking for it would check it.
            entry = self.tiers.memory[0]._table.lease(data.draw(st.sampled_from(keys)))
            memory = kv_bytes(entry.payload.kv)
            memory[data.draw(st.integers(0, len(memory) - 1))] ^= 1
            self.tiers.memory[0]._table.release(entry)
            return
        files = sorted(p for p in self.folder.iterdir() if p.suffix == ".kv")
        if not files:
            return
        path = data.draw(st.sampled_from(files))
        if data.draw(st.booleans()):
            path.unlink()
            return
        content = bytearray(path.read_bytes())
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1
        path.write_bytes(bytes(content))

    @precondition(lambda self: self.serial % 11 == 7)
    @rule()
    def restart(self) -> None:
        """The process ends and begins anew: the disk is what is left."""
        self._settle_all()
        self.library.close()
        self.tiers.close()
        self.pipeline.close()
        self.known.clear()
        self.prompts, self.materialised = 0, 0
        self.settled.clear()
        self._open_all()

    # -- requests ------------------------------------------------------------------------

    @rule(head=st.integers(21, 40), parts=documents, where=namespaces)
    def plan(self, head: int, parts: list[int], where: int) -> None:
        """A request is planned and waits."""
        self._plan(head, parts, where)

    def _plan(self, head: int, parts: list[int], where: int) -> str:
        self._sync()
        tokens, namespace = prompt_of(head, parts), NAMESPACES[where]
        self.serial += 1
        request_id = f"r{self.serial}"
        plan = self.pipeline.plan(tokens, namespace, request_id=request_id)
        self.open[request_id] = plan
        self.prompts += len(tokens)
        for span in plan.spans:
            donor, theirs = self.known[span.donor_id]
            assert theirs == namespace
            assert np.array_equal(
                donor[span.donor_start : span.donor_end],
                tokens[span.target_start : span.target_end],
            )
        donors = [donor for donor, theirs in self.known.values() if theirs == namespace]
        if len(tokens) >= 64:  # shorter prompts are not looked up
            assert plan.evidence.matched_tokens == len(covered_positions(tokens, donors))
        return request_id

    @rule(head=st.integers(21, 40), parts=documents, where=namespaces)
    def serve(self, head: int, parts: list[int], where: int) -> None:
        """Plan and carry out at once, as most requests are."""
        self._carry_out(self._plan(head, parts, where), None)

    @rule(head=st.integers(21, 40), parts=documents)
    def plan_with_a_fault(self, head: int, parts: list[int]) -> None:
        tokens = prompt_of(head, parts)
        with planted("index_read"):
            plan = self.pipeline.plan(tokens, NAMESPACES[0])
        expected = DeclineReason.SHORT_PROMPT if len(tokens) < 64 else DeclineReason.INTERNAL_ERROR
        assert plan.reason is expected

    @precondition(lambda self: self.open)
    @rule(data=st.data(), fault=st.sampled_from((None, *TIER_FAULTS)))
    def carry_out(self, data: st.DataObject, fault: FaultPoint | None) -> None:
        """The engine loads what was planned, however long ago, and confirms; or declines."""
        self._carry_out(data.draw(st.sampled_from(sorted(self.open))), fault)

    def _carry_out(self, request_id: str, fault: FaultPoint | None) -> None:
        plan = self.open.pop(request_id)
        if not plan.executable:
            self.settled[self.pipeline.ledger.computed(request_id).outcome] += 1
            return
        try:
            with planted("" if fault is None else f"{fault}:0.5", seed=self.serial):
                for span in plan.copies:
                    self._load(span.donor_id, span.donor_start, span.donor_end)
        except (DonorError, StorageError):
            self.pipeline.ledger.computed(request_id, DeclineReason.DONOR_GONE)
            self.settled[Outcome.DECLINED] += 1
            return
        self.pipeline.ledger.confirm(request_id, materialised_tokens=plan.reused_tokens)
        self.settled[Outcome.MATERIALISED] += 1
        self.materialised += plan.reused_tokens

    def _load(self, donor_id: str, start: int, end: int) -> None:
        """Lease a donor: its K/V is exact in every bit, or it is gone from now on."""
        try:
            with self.library.lease(donor_id, start, end) as donor:
                covered = start
                for piece in donor.pieces:
                    assert piece.start <= covered < piece.end
                    covered = piece.end
                    tokens, namespace = self.known[donor_id]
                    share = self.pipeline.share_key(namespace)
                    key = SegmentKey.of(share, tokens, piece.start, piece.end)
                    assert torch.equal(piece.kv, exact_kv(key))
                assert covered >= end
        except (DonorError, StorageError):
            if "injected" not in str(_cause()):
                assert not self.pipeline.holds(donor_id)
            raise

    # -- laws ----------------------------------------------------------------------------

    @invariant()
    def books_agree(self) -> None:
        if not hasattr(self, "library"):
            return
        self._sync()
        assert set(self.known) == set(self.library._donors)
        assert len(self.known) == self.pipeline.stats().donors

    @invariant()
    def caps_hold_and_nothing_stays_leased(self) -> None:
        if not hasattr(self, "library"):
            return
        for tier in self.tiers.stats():
            assert tier.used_bytes <= tier.capacity_bytes
            assert tier.leased == 0
        on_disk = sum(
            os.path.getsize(path) for path in self.folder.iterdir() if path.suffix != ".lock"
        )
        assert on_disk <= DISK_BYTES
        stats = self.pipeline.stats()
        assert stats.index_bytes <= stats.index_capacity_bytes

    @invariant()
    def the_ledger_adds_up(self) -> None:
        if not hasattr(self, "library"):
            return
        totals = self.pipeline.ledger.totals()
        assert totals.open_requests == len(self.open)
        assert totals.tokens[Outcome.MATERIALISED] == self.materialised
        for outcome in (Outcome.MATERIALISED, Outcome.DECLINED):
            assert totals.requests[outcome] == self.settled[outcome]
        waiting = sum(plan.prompt_tokens for plan in self.open.values())
        assert sum(totals.tokens.values()) + waiting == self.prompts

    def _sync(self) -> None:
        """Forget, in the model, donors that had to make room: they are gone on both sides."""
        for donor_id in list(self.known):
            if not self.pipeline.holds(donor_id):
                assert donor_id not in self.library._donors
                del self.known[donor_id]

    def _settle_all(self) -> None:
        for request_id in list(self.open):
            self.pipeline.ledger.computed(request_id)
        self.open.clear()


def _cause() -> BaseException | None:
    import sys

    return sys.exc_info()[1]


@pytest.mark.parametrize("examples", [100])
def test_no_history_breaks_a_law(examples: int) -> None:
    run_state_machine_as_test(
        Histories,
        settings=settings(
            max_examples=examples,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
