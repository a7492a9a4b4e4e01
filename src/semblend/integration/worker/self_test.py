"""The start-up proof: K we move is the K this engine's model computes there.

One token alone attends to itself only, so its hidden states do not depend on its
position and what differs between its K at two positions is the model's rotation.
The token goes through the nested pass into a scratch block and is read back, so the
proof covers the pass, the reading of the cache and the rotation on every layer.
"""

from __future__ import annotations

import numpy as np
import torch

from semblend.integration.worker.port import KvAccess, Passes
from semblend.integration.worker.sequences import VirtualSequence, block_table
from semblend.kv.layer_rotary import Rotary
from semblend.kv.rotary_self_test import positions_to_prove, prove_moves

_TOKEN = 1


@torch.inference_mode()
def prove_rotation(nested: Passes, access: KvAccess, table: Rotary, *, max_positions: int) -> None:
    """Compare moved K with K the model computes at the new position, on every layer.

    Raises
    ------
    UnsupportedRotaryError
        Naming the layer and the positions where they differ.
    """
    positions = positions_to_prove(min(table.positions, max_positions))
    prove_moves(table, positions, [_keys_at(nested, access, position) for position in positions])


def _keys_at(nested: Passes, access: KvAccess, position: int) -> torch.Tensor:
    """K of one lone token, [layers, copies, 1, kv_heads, head_dim], on the host.

    In two sequences of one pass: a kernel that mistakes where a token's numbers lie is right about
    the first token.
    """
    copies = range(access.scratch_block, min(access.scratch_block + 2, access.blocks))
    nested.run(
        [
            VirtualSequence(
                tokens=np.array([_TOKEN], dtype=np.int32),
                start=0,
                end=1,
                blocks=block_table((block,)),
                shift=position,
            )
            for block in copies
        ]
    )
    return torch.stack([access.read((block,), 0, 1)[:, 0].cpu() for block in copies], dim=1)
