"""Whether holes of one request may share a pass: the trial prompt, in the engine itself.

What is compared is `worker.pass_proof`'s.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch

from semblend.integration.sglang.nested_pass import NestedPass
from semblend.integration.worker.host_ranks import MeetingRanks
from semblend.integration.worker.pass_proof import TRIAL_TOKENS, SlotTrial, proven_limits
from semblend.integration.worker.sequences import PassLimits, block_table
from semblend.integration.worker.varlen_batch import uploaded


def proven(runner: Any, cache: Any, limits: PassLimits, ranks: MeetingRanks) -> PassLimits:
    """The limits with whether holes share a pass in this engine."""
    return proven_limits(limits, ranks, partial(_trial, runner, cache, ranks))


@contextmanager
def _trial(runner: Any, cache: Any, ranks: MeetingRanks, limits: PassLimits) -> Iterator[SlotTrial]:
    """Slots and a row are the engine's own and are given back as they were: nothing runs yet."""
    from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
    from sglang.srt.model_executor.forward_batch_info import ForwardMode
    from sglang.srt.sampling.sampling_params import SamplingParams
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    size, vocabulary = TRIAL_TOKENS, int(runner.model_config.vocab_size)
    tokens = 1 + 7 * np.arange(size, dtype=np.int32) % (vocabulary - 1)
    request = Req(
        rid="semblend-trial",
        origin_input_text="",
        origin_input_ids=tokens.tolist(),
        sampling_params=SamplingParams(max_new_tokens=1),
    )
    pool, allocator = runner.req_to_token_pool, cache.token_to_kv_pool_allocator
    batch = ScheduleBatch.init_new(
        [request],
        pool,
        allocator,
        cache,
        runner.model_config,
        False,
        SpeculativeAlgorithm.NONE,
    )
    batch.forward_mode = ForwardMode.EXTEND
    row = int(pool.req_to_token.shape[0]) - 1
    batch.req_pool_indices_cpu = torch.tensor([row], dtype=torch.int64)
    batch.req_pool_indices = uploaded(np.array([row]), runner.device)
    slots = allocator.alloc(-(-size // cache.page_size) * cache.page_size)
    line = pool.req_to_token[row]
    kept = line[: len(slots)].clone()
    try:
        line[: len(slots)] = slots.to(line.dtype)
        kv = runner.token_to_kv_pool
        yield SlotTrial(
            NestedPass(runner, batch, limits, ranks),
            tokens,
            blocks=block_table((row,)),
            slots=slots.to(torch.int64),
            layers=list(zip(kv.k_buffer, kv.v_buffer, strict=True)),
        )
    finally:
        line[: len(slots)] = kept
        allocator.free(slots)
