"""When a pass fails: the region is computed exactly, by the engine's own forward.

The batch is handed to the engine with these requests' regions in front of their tails,
as if nothing had been loaded. Slots and rows stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any

import numpy as np
import torch

from semblend.core.plan import Hole
from semblend.integration.worker.varlen_batch import uploaded


def with_regions_computed(batch: Any, regions: Mapping[int, Hole], table: torch.Tensor) -> Any:
    """A copy of an extend batch that also computes the regions.

    Parameters
    ----------
    regions
        Row of the batch to [start, end), where end is what the engine takes as present.
    table
        The slot table, [requests, positions].
    """
    device = batch.input_ids.device
    tokens: list[torch.Tensor] = []
    slots: list[torch.Tensor] = []
    prefixes, lengths = list(batch.prefix_lens), list(batch.extend_lens)
    starts = batch.extend_logprob_start_lens
    starts = None if starts is None else list(starts)
    offset = 0
    for row, request in enumerate(batch.reqs):
        own = slice(offset, offset + batch.extend_lens[row])
        offset = own.stop
        region = regions.get(row)
        if region is not None:
            ids = request.full_untruncated_fill_ids[region.start : region.end]
            ids = np.asarray(ids, dtype=np.int64)
            tokens.append(uploaded(ids, device).to(batch.input_ids.dtype))
            index = int(batch.req_pool_indices_cpu[row])
            slots.append(table[index, region.start : region.end].to(batch.out_cache_loc.dtype))
            prefixes[row] -= len(region)
            lengths[row] += len(region)
            if starts is not None:
                starts[row] += len(region)
        tokens.append(batch.input_ids[own])
        slots.append(batch.out_cache_loc[own])
    whole = copy(batch)
    whole.input_ids, whole.out_cache_loc = torch.cat(tokens), torch.cat(slots)
    whole.prefill_input_ids_cpu = None
    whole.prefix_lens, whole.extend_lens = prefixes, lengths
    whole.extend_num_tokens = sum(lengths)
    whole.extend_logprob_start_lens = starts
    return whole
