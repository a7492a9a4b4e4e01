"""A load step by step: leased at once, placed layer by layer, counted when its checksums are in.

Into caches of several layouts, without an engine: what GPUs' backends lay out is not to be had
on a CPU otherwise.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from semblend.core.errors import DonorError
from semblend.core.faults import InjectedError, planted
from semblend.core.plan import Span
from semblend.integration.scheduler.orders import LoadCommand
from semblend.integration.worker.donors import WorkerDonors, segment_keys
from semblend.integration.worker.span_loader import DonorLostError, SpanLoader
from semblend.kv.segments import Segment, kv_bytes
from semblend.kv.tiers import MemoryTier, TierStack
from tests.integration.test_paged_strides import CACHES, TABLE, access_to, kv_of

SHARE_KEY = b"k" * 16
DONOR = np.arange(40, dtype=np.int32)
BLOCKS = (5, 2, 7, 1, 3)
SPANS = (
    Span(donor_id="d", donor_start=9, target_start=2, length=11),
    Span(donor_id="d", donor_start=30, target_start=15, length=4),
)


def shelf(monkeypatch, segment_tokens: int = 6) -> tuple[WorkerDonors, torch.Tensor]:
    """A donor in segments of a few tokens, and its K/V."""
    monkeypatch.setattr("semblend.integration.worker.donors.SEGMENT_TOKENS", segment_tokens)
    donors = WorkerDonors(TierStack([MemoryTier.on_host(capacity_bytes=1 << 20)]))
    kv, keys = kv_of(len(DONOR)), segment_keys(SHARE_KEY, DONOR)
    donors.claim("d", DONOR, keys)
    for key in keys:
        part = kv[:, :, key.start : key.start + key.length].contiguous()
        donors.tiers.put(Segment(key=key, kv=part))
    return donors, kv


def command(spans=SPANS) -> LoadCommand:
    tokens = np.full(20, -1, dtype=np.int32)
    for span in spans:
        tokens[span.target_start : span.target_end] = DONOR[span.donor_start : span.donor_end]
    return LoadCommand(
        request_id="r", block_ids=BLOCKS, tokens=tokens, start=0, end=20, copies=spans, holes=()
    )


def expected(kv: torch.Tensor, span: Span) -> torch.Tensor:
    rows = kv[:, :, span.donor_start : span.donor_end].clone()
    source = torch.arange(span.donor_start, span.donor_end)
    rows[:, 0] = TABLE.rerotate(rows[:, 0], source, source + span.delta)
    return rows


def loaded(loader):
    """Everything a command copies, in place; the tokens copied."""
    load = loader.begin(command())
    try:
        load.place_all()
        return load.finish()
    finally:
        load.close()


@pytest.mark.parametrize("name", CACHES)
def test_spans_arrive_whichever_segments_they_lie_in(monkeypatch, name):
    donors, kv = shelf(monkeypatch)
    access = access_to(name)
    load = SpanLoader(access, donors, TABLE).begin(command())
    assert not load.is_done
    load.place_all()
    assert load.finish() == load.tokens == 15
    for span in SPANS:
        got = access.read(BLOCKS, span.target_start, span.target_end)
        torch.testing.assert_close(got, expected(kv, span))
    (tier,) = donors.tiers.stats()
    assert tier.leased == 0


@pytest.mark.parametrize("name", ["[blocks, heads, size, 2 dim]", "packed"])
def test_a_corrupt_segment_is_found_before_the_load_counts(monkeypatch, name):
    donors, _ = shelf(monkeypatch)
    (tier,) = donors.tiers.memory
    key = donors._donors["d"].keys[2]
    with tier.acquire(key) as lease:
        kv_bytes(lease.segment.kv)[3] ^= 1
    load = SpanLoader(access_to(name), donors, TABLE).begin(command())
    load.place_all()
    with pytest.raises(DonorLostError, match="corrupt") as lost:
        load.finish()
    assert lost.value.donor_id == "d"
    assert donors.take_lost() == {"d"}
    assert "d" not in donors
    assert key not in tier
    assert donors.tiers.stats()[0].leased == 0


def test_what_fails_while_it_begins_holds_nothing(monkeypatch):
    donors, _ = shelf(monkeypatch)
    access = access_to("[blocks, heads, size, 2 dim]")
    loader = SpanLoader(access, donors, TABLE)
    before = [layer.kv_cache.clone() for layer in access.layers]
    elsewhere = Span(donor_id="gone", donor_start=0, target_start=14, length=3)
    other = command()
    other.tokens[4] += 1
    for wrong, donor_id in ((command((SPANS[0], elsewhere)), "gone"), (other, "d")):
        with pytest.raises(DonorLostError) as lost:
            loader.begin(wrong)
        assert lost.value.donor_id == donor_id
        assert donors.tiers.stats()[0].leased == 0
    assert all(
        torch.equal(layer.kv_cache, was) for layer, was in zip(access.layers, before, strict=True)
    )


@pytest.mark.parametrize("point", ["copy", "lease", "checksum"])
def test_every_fault_point_of_a_load_ends_it_with_nothing_held(monkeypatch, point):
    donors, _ = shelf(monkeypatch)
    loader = SpanLoader(access_to("packed"), donors, TABLE)
    with planted(point), pytest.raises((DonorError, InjectedError)) as raised:
        loaded(loader)
    assert isinstance(raised.value, DonorError) is (point != "copy")
    assert donors.tiers.stats()[0].leased == 0
