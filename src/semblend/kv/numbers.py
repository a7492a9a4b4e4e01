"""How K/V is stored: as plain floating point numbers, or as fp8 (e4m3) in bytes.

Engines keep fp8 caches as bytes: a byte is the number divided by a scale of its tensor or head. A
rotation is linear and stays within a head, so the scale cancels out: what moves is decoded, rotated
in fp32 and encoded at the same scale without knowing it. Only what is larger than fp8 can hold is
clipped, and counted.
"""

from __future__ import annotations

import torch

LARGEST = 448.0
"""The largest number in e4m3; torch turns what is larger into NaN."""


def is_fp8(dtype: torch.dtype) -> bool:
    """Whether K/V of this type holds fp8 numbers."""
    return dtype == torch.uint8


def decoded(kv: torch.Tensor) -> torch.Tensor:
    """K/V as fp32; fp8 in units of its scale."""
    return (kv.view(torch.float8_e4m3fn) if is_fp8(kv.dtype) else kv).float()


def unclipped(kv: torch.Tensor) -> torch.Tensor:
    """Which vectors, [..., 1], have no number at the end of fp8's range; else all of them."""
    if not is_fp8(kv.dtype):
        return torch.ones((*kv.shape[:-1], 1), dtype=torch.bool, device=kv.device)
    return (decoded(kv).abs() < LARGEST).all(dim=-1, keepdim=True)


def encoded(
    numbers: torch.Tensor, dtype: torch.dtype, clipped: torch.Tensor | None = None
) -> torch.Tensor:
    """fp32 numbers as they are stored.

    Parameters
    ----------
    clipped
        int64 [1] on the same device: how many numbers did not fit is added to it.
    """
    if not is_fp8(dtype):
        return numbers.to(dtype)
    if clipped is not None:
        clipped += (numbers.abs() > LARGEST).sum()
    return numbers.clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn).view(torch.uint8)
