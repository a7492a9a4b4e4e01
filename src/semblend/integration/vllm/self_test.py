"""The start-up proof: K we move is the K this engine's model computes there.

One token alone attends to itself only, so its hidden states do not depend on its
position and what differs between its K at two positions is the model's rotation.
The token goes through the nested pass into a scratch block and is read back, so the
proof covers the pass, the reading of the cache and the rotation on every layer.
"""

from __future__ import annotations

import numpy as np
import torch

from semblend.integration.vllm.nested_pass import NestedPass
from semblend.integration.vllm.paged_access import PagedAccess
from semblend.integration.vllm.pass_split import VirtualSequence, block_table
from semblend.kv.rotary_self_test import positions_to_prove, prove_moves
from semblend.kv.rotary_table import RotaryTable

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
    positions = positions_to_prove(min(table.positions, max_positions))
    prove_moves(table, positions, [_keys_at(nested, access, position) for position in positions])


def _keys_at(nested: NestedPass, access: PagedAccess, position: int) -> torch.Tensor:
    """K of one lone token, [layers, 1, kv_heads, head_dim], on the host."""
    nested.run(
        [
            VirtualSequence(
                tokens=np.array([_TOKEN], dtype=np.int32),
                start=0,
                end=1,
                blocks=block_table((_SCRATCH_BLOCK,)),
                shift=position,
            )
        ]
    )
    return access.read((_SCRATCH_BLOCK,), 0, 1)[:, 0].cpu()
