"""Keys: equal exactly where namespace, position and every token so far are equal."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from semblend.core.errors import DonorError
from semblend.core.namespace import Namespace
from semblend.kv.segments import Segment, SegmentKey, kv_checksum
from tests.kv.segments import NAMESPACE, key_of, segment_of

prompts = st.lists(st.integers(0, 3), min_size=1, max_size=8)


@given(prompts, prompts, st.data())
def test_keys_are_equal_exactly_when_context_tokens_and_place_are(one, other, data) -> None:
    def draw(tokens):
        start = data.draw(st.integers(0, len(tokens) - 1))
        return start, data.draw(st.integers(start + 1, len(tokens)))

    (start, end), (other_start, other_end) = draw(one), draw(other)
    first = SegmentKey.of(NAMESPACE, np.array(one, np.int32), start, end)
    second = SegmentKey.of(NAMESPACE, np.array(other, np.int32), other_start, other_end)
    same = (start, end, one[:end]) == (other_start, other_end, other[:other_end])
    assert (first == second) == same
    assert (first.digest == second.digest) == same


@given(st.lists(st.integers(0, 50_000), min_size=4, max_size=40), st.data())
def test_how_a_prompt_is_cut_before_a_segment_does_not_matter(tokens, data) -> None:
    ids = np.array(tokens, np.int32)
    cuts = data.draw(st.sets(st.integers(1, len(tokens) - 1), max_size=4))
    edges = sorted({0, len(tokens)} | cuts)
    chained = SegmentKey.chain(NAMESPACE, ids, edges)
    alone = [SegmentKey.of(NAMESPACE, ids, start, end) for start, end in pairwise(edges)]
    assert list(chained) == alone


def test_namespaces_never_share_keys() -> None:
    ids = np.arange(8, dtype=np.int32)
    one = Namespace.of(model="m", tenant="a").key()
    other = Namespace.of(model="m", tenant="b").key()
    assert SegmentKey.of(one, ids, 0, 8).digest != SegmentKey.of(other, ids, 0, 8).digest


def test_a_name_is_hex_and_nothing_else() -> None:
    name = key_of(3).name
    assert len(name) == 64
    assert set(name) <= set("0123456789abcdef")


@pytest.mark.parametrize("edges", [[0], [0, 0], [3, 2], [-1, 2], [0, 9]])
def test_edges_that_do_not_rise_inside_the_prompt_are_refused(edges) -> None:
    with pytest.raises(DonorError, match="segment edges"):
        SegmentKey.chain(NAMESPACE, np.arange(8, dtype=np.int32), edges)


def test_a_segment_has_the_shape_its_key_says() -> None:
    with pytest.raises(DonorError, match=r"\[layers, parts, 4, kv_heads, head_dim\]"):
        Segment(key=key_of(1), kv=torch.zeros(2, 2, 5, 1, 4))
    with pytest.raises(DonorError, match="contiguous"):
        Segment(key=key_of(1), kv=torch.zeros(2, 2, 4, 4, 2).transpose(3, 4))
    with pytest.raises(DonorError, match="16 and a digest"):
        SegmentKey(namespace=b"short", start=0, length=4, digest=b"d" * 32)
    with pytest.raises(DonorError, match="length >= 1"):
        SegmentKey(namespace=NAMESPACE, start=0, length=0, digest=b"d" * 32)


@given(st.integers(0, 2 * 2 * 4 * 4 * 8 * 2 - 1))
def test_a_checksum_sees_every_bit(bit) -> None:
    kv = segment_of(5).kv
    before = kv_checksum(kv)
    raw = kv.view(torch.uint8).flatten()
    bit %= raw.numel() * 8
    raw[bit // 8] ^= 1 << (bit % 8)
    assert kv_checksum(kv) != before
