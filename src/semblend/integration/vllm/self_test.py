"""The start-up proof: K we move is the K this engine's model computes there.

One token alone attends to itself only, so its hidden states do not depend on its
position and what differs between its K at two positions is the model's rotation.
The token goes through the nested pass into a scratch block and is read back, so the
proof covers the pass, the reading of the cache and the rotation on every layer.
"""

from __future__ import annotations

import torch

from semblend.core.errors import UnsupportedRotaryError
from semblend.integration.vllm.nested_pass import NestedPass, VirtualSequence
from semblend.integration.vllm.paged_access import PagedAccess
from semblend.kv.rotary_table import RotaryTable

_TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 4e-2}
"""Of K's largest number. A wrong pairing or a missing rotation errs by about 1."""
_TOKEN = 1
_SCRATCH_BLOCK = 1
"""Block 0 is vLLM's null block. Nothing is cached yet when this runs."""


@torch.inference_mode()
def prove_rotation(
    nested: NestedPass, access: PagedAccess, table: RotaryTable, *, max_positions: int
) -> None:
    """Compare moved K with K the model computes at the new position, on every layer.

    Raises
    ------
    UnsupportedRotaryError
        Naming the layer and the positions where they differ.
    """
    last = min(table.positions, max_positions) - 1
    positions = sorted({0, min(1, last), last // 3, last})
    computed = [_keys_at(nested, access, position) for position in positions]
    for source, keys in zip(positions, computed, strict=True):
        for target, expected in zip(positions, computed, strict=True):
            moved = table.rerotate(keys, torch.tensor([source]), torch.tensor([target]))
            _compare(moved, expected, source, target)


def _keys_at(nested: NestedPass, access: PagedAccess, position: int) -> torch.Tensor:
    """K of one lone token, [layers, 1, kv_heads, head_dim], on the host."""
    nested.run(
        [
            VirtualSequence(
                tokens=torch.tensor([_TOKEN], dtype=torch.int32),
                positions=torch.tensor([position]),
                slots=torch.tensor([_SCRATCH_BLOCK * access.block_size]),
                block_ids=(_SCRATCH_BLOCK,),
                length=1,
            )
        ]
    )
    return access.read((_SCRATCH_BLOCK,), 0, 1)[:, 0].cpu()


def _compare(moved: torch.Tensor, expected: torch.Tensor, source: int, target: int) -> None:
    error = (moved.double() - expected.double()).abs().flatten(1).amax(dim=1)
    scale = float(expected.double().abs().max().clamp(min=1e-12))
    worst = int(error.argmax())
    relative = float(error[worst]) / scale
    # Written so that a NaN fails.
    if not relative <= _TOLERANCE.get(expected.dtype, 4e-2):
        raise UnsupportedRotaryError(
            f"start-up self-test: K of layer {worst} moved from position {source} to {target} "
            f"differs from the model's own by {relative:.2e} of its largest value"
        )
