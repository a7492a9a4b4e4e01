"""Copies inside a K/V pool, on whichever device there is: the same numbers, in the right order."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from semblend.integration.sglang.kv_pool import KvPool
from semblend.integration.worker.pool_copies import PoolCopies
from semblend.kv.rotary_spec import RotarySpec
from semblend.kv.rotary_table import RotaryTable
from semblend.kv.span_batch import SpanCopy

LAYERS, SLOTS, HEADS, WIDTH = 3, 256, 2, 32
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def make_pool(device: str, dtype: torch.dtype):
    torch.manual_seed(1)
    shape = (SLOTS, HEADS, WIDTH)
    keys = [torch.randn(shape, device=device).to(dtype) for _ in range(LAYERS)]
    values = [torch.randn(shape, device=device).to(dtype) for _ in range(LAYERS)]
    runner = SimpleNamespace(
        token_to_kv_pool=SimpleNamespace(k_buffer=keys, v_buffer=values),
        req_to_token_pool=None,
        forward_stream=torch.cuda.Stream() if device == "cuda" else None,
    )
    spec = RotarySpec.from_config(
        SimpleNamespace(
            hidden_size=HEADS * WIDTH,
            num_attention_heads=HEADS,
            head_dim=WIDTH,
            max_position_embeddings=4096,
            rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
            model_type="llama",
        )
    )
    table = RotaryTable.from_spec(spec)
    pool = KvPool(runner)
    return PoolCopies(pool.slots, table, stream=pool.stream), runner, table


def span(
    copies: PoolCopies, source: torch.Tensor, target: torch.Tensor, *, starts: tuple[int, int]
):
    return SpanCopy(
        source=copies.pool,
        source_slots=source.cpu().numpy(),
        target_slots=target.cpu().numpy(),
        source_start=starts[0],
        target_start=starts[1],
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("device", DEVICES)
def test_copies_rotate_keys_and_leave_values(device, dtype):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU here")
    pool, runner, table = make_pool(device, dtype)
    keys = [layer.clone() for layer in runner.token_to_kv_pool.k_buffer]
    values = [layer.clone() for layer in runner.token_to_kv_pool.v_buffer]
    source = torch.randperm(100, device=device)[:60]
    target = 100 + torch.randperm(100, device=device)[:60]
    moved = span(pool, source[:40], target[:40], starts=(7, 300))
    still = span(pool, source[40:], target[40:], starts=(90, 90))
    assert pool.copy([moved, still]) == 60
    pool.wait()
    offsets = torch.arange(40, device=device)
    for layer in range(LAYERS):
        buffer = runner.token_to_kv_pool
        expected = table.to(device).rerotate(keys[layer][source[:40]], 7 + offsets, 300 + offsets)
        torch.testing.assert_close(buffer.k_buffer[layer][target[:40]], expected)
        assert torch.equal(buffer.k_buffer[layer][target[40:]], keys[layer][source[40:]])
        assert torch.equal(buffer.v_buffer[layer][target], values[layer][source])
        assert torch.equal(buffer.k_buffer[layer][:100], keys[layer][:100]), (
            "donors stay as they are"
        )


@pytest.mark.gpu
def test_copies_wait_for_the_forward_that_writes_the_donor():
    if not torch.cuda.is_available():
        pytest.skip("no GPU here")
    pool, runner, _ = make_pool("cuda", torch.float32)
    ones = torch.ones(SLOTS, HEADS, WIDTH, device="cuda")
    large = torch.randn(4096, 4096, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(runner.forward_stream):
        for _ in range(30):
            large = large @ large  # a forward that takes its time
        for layer in range(LAYERS):
            runner.token_to_kv_pool.v_buffer[layer].copy_(ones)
    slots = torch.arange(32, device="cuda")
    pool.copy([span(pool, slots, slots + 100, starts=(5, 5))])
    pool.wait()
    for layer in range(LAYERS):
        assert torch.equal(runner.token_to_kv_pool.v_buffer[layer][100:132], ones[:32])
