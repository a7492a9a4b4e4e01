"""More holes than one forward may hold: several forwards, and the same K/V."""

from __future__ import annotations

from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
import torch

from semblend.integration.vllm.nested_pass import NestedPass, limits_of
from semblend.integration.worker.policy_probe import LoadProbe
from semblend.integration.worker.sequences import PassLimits, VirtualSequence, block_table
from semblend.integration.worker.varlen_batch import VarlenBatch
from tests.integration.models import joined, random_tokens
from tests.integration.vllm.probe import chopped

PASSAGES = [random_tokens(96 + 17 * n, seed=171 + n) for n in range(4)]
TARGET = joined(
    *(part for n, text in enumerate(PASSAGES) for part in (random_tokens(20, seed=181 + n), text)),
    random_tokens(40, seed=191),
)
ROOMY = PassLimits(sequences=1000, tokens=100_000)


PROMPT = np.arange(100, 200, dtype=np.int32)


def sequence(start: int, end: int, blocks: tuple[int, ...] = (1, 2)) -> VirtualSequence:
    return VirtualSequence(tokens=PROMPT, start=start, end=end, blocks=block_table(blocks))


@pytest.fixture
def engine(make_engine):
    """Two sequences a forward: vLLM's own buffers are made for no more."""
    engine = make_engine("llama", engine={"max_num_seqs": 2})
    engine.forget_donors()
    engine.forget_prefixes()
    for n, passage in enumerate(PASSAGES):
        engine.donate(joined(random_tokens(30, seed=201 + n), passage))
    return engine


def counted(engine):
    """Every forward's number of sequences from now on."""
    sizes: list[int] = []
    forward = NestedPass._forward

    def counting(self, sequences, **options):
        sizes.append(len(sequences))
        return forward(self, sequences, **options)

    return sizes, patch.object(NestedPass, "_forward", counting)


def test_a_split_keeps_order_tokens_and_what_each_token_sees():
    limits = PassLimits(sequences=3, tokens=10)
    sequences = [sequence(0, 4), sequence(6, 7), sequence(9, 34), sequence(40, 41), sequence(2, 5)]
    forwards = limits.forwards(sequences)
    pieces = [piece for forward in forwards for piece in forward]
    assert all(len(forward) <= 3 for forward in forwards)
    assert all(sum(map(len, forward)) <= 10 for forward in forwards)
    together = [place for piece in pieces for place in range(piece.start, piece.end)]
    assert together == [place for item in sequences for place in range(item.start, item.end)]


def test_a_batch_says_where_every_token_stands_and_goes():
    """Against one token at a time, over two prompts with holes in any order."""
    first, second = block_table((7, 3, 9)), block_table((2, 5, 8, 4, 1, 6))
    runs = [(first, 1, 6, 0), (second, 0, 3, 0), (first, 9, 11, 0), (second, 20, 23, 40)]
    sequences = [
        VirtualSequence(tokens=PROMPT, start=start, end=end, blocks=blocks, shift=shift)
        for blocks, start, end, shift in runs
    ]
    layout = VarlenBatch.of(sequences, 4)
    expected = [
        (PROMPT[place], place + shift, blocks[place // 4] * 4 + place % 4)
        for blocks, start, end, shift in runs
        for place in range(start, end)
    ]
    assert list(zip(layout.tokens, layout.positions, layout.slots, strict=True)) == expected
    assert layout.starts.tolist() == [0, 5, 8, 10, 13]
    assert layout.lengths.tolist() == [6, 3, 11, 23]
    tables = layout.tables[layout.rows]
    for (blocks, *_), row in zip(runs, tables, strict=True):
        assert row[: len(blocks)].tolist() == blocks.tolist()


def test_the_last_forward_is_the_fullest():
    forwards = PassLimits(sequences=8, tokens=10).forwards([sequence(0, 5), sequence(7, 20)])
    assert [sum(map(len, forward)) for forward in forwards] == [8, 10]


def test_what_fits_is_one_forward_and_nothing_is_none():
    assert len(ROOMY.forwards([sequence(0, 5), sequence(7, 20)])) == 1
    assert ROOMY.forwards([]) == []


@pytest.mark.parametrize("room", [1, 4, 5, 256, 1023])
def test_flash_attentions_planned_buffer_is_the_limit(room):
    """Its size is the builder's: a counter and four numbers a sequence, rounded up to four."""
    rounded = -(-room // 4) * 4
    builder = SimpleNamespace(scheduler_metadata=torch.zeros(1 + rounded * 4, dtype=torch.int32))
    scheduler = SimpleNamespace(max_num_seqs=2, max_num_batched_tokens=64)
    assert limits_of([builder], scheduler) == PassLimits(sequences=rounded, tokens=64)
    eager = SimpleNamespace()
    assert limits_of([builder, eager], scheduler).sequences == 2


def test_holes_beyond_one_forward_are_computed_as_in_one(engine):
    nested = engine.worker.nested
    assert nested.limits.sequences == 2
    sizes, counting = counted(engine)
    with patch.object(nested, "limits", ROOMY):
        expected = engine.run(TARGET, hints={"capture": False})
        written = engine.kv(expected, 0, len(TARGET))
    with counting:
        answer = engine.run(TARGET, hints={"capture": False})
    assert len(engine.scheduler_connector.loads[-1].holes) == 4
    assert sizes == [2, 2]
    assert answer.tokens == expected.tokens
    torch.testing.assert_close(engine.kv(answer, 0, len(TARGET)), written, atol=1e-5, rtol=1e-5)


def test_the_order_of_forwards_matters_and_is_kept(engine):
    """One-token holes, so that nearly every one depends on a hole of an earlier forward."""
    connector, nested = engine.scheduler_connector, engine.worker.nested
    connector.rewrite_load = chopped
    with patch.object(nested, "limits", ROOMY):
        written = engine.kv(engine.run(TARGET, hints={"capture": False}), 0, len(TARGET))
    sizes, counting = counted(engine)
    with counting:
        split = engine.kv(engine.run(TARGET, hints={"capture": False}), 0, len(TARGET))
    assert len(sizes) == 40
    torch.testing.assert_close(split, written, atol=1e-4, rtol=1e-4)

    forwards = PassLimits.forwards
    with patch.object(PassLimits, "forwards", lambda self, items: forwards(self, items)[::-1]):
        wrong = engine.kv(engine.run(TARGET, hints={"capture": False}), 0, len(TARGET))
    assert not torch.allclose(wrong, written, atol=1e-1)


@pytest.mark.parametrize(
    "limits", [PassLimits(sequences=2, tokens=100_000), PassLimits(sequences=64, tokens=16)]
)
def test_a_probe_sees_the_same_attention_in_several_forwards(engine, limits):
    """The tail, whose attention is read off, is in the last; the other forwards are not watched."""
    nested = engine.worker.nested
    seen, answers = [], []
    look = LoadProbe._tail_attention

    def recording(*arguments):
        seen.append(look(*arguments))
        return seen[-1]

    for use in (ROOMY, limits):
        with (
            patch.object(nested, "limits", use),
            patch.object(LoadProbe, "_tail_attention", recording),
        ):
            answers.append(
                engine.run(TARGET, hints={"capture": False, "policy": "query_attention(0.2)"})
            )
    one, several = seen
    assert one.sum() > 0
    np.testing.assert_allclose(several, one, rtol=1e-4, atol=1e-5)
    assert answers[0].semblend["recomputed_tokens"] == answers[1].semblend["recomputed_tokens"] > 0
    assert answers[0].tokens == answers[1].tokens


def test_a_shadow_samples_logits_are_the_same_in_several_forwards(engine):
    nested = engine.worker.nested
    item = VirtualSequence(tokens=TARGET, start=0, end=60, blocks=block_table((1, 2)))
    whole = nested.logits(item, last=8)
    with patch.object(nested, "limits", PassLimits(sequences=2, tokens=8)):
        torch.testing.assert_close(nested.logits(item, last=8), whole, atol=1e-4, rtol=1e-4)
