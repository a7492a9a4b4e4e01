"""Whether holes of one request may share a pass: tried on the engine itself, at start.

An attention backend that writes a layer's K/V before it reads any computes two holes in one
pass as it does in two. One that attends first lets the second hole read what was in the first
one's slots before. Names say nothing about it (a backend has several paths), so both ways
are run and their K/V is compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from semblend.core.plan import Hole
from semblend.integration.sglang.log_lines import logger
from semblend.integration.sglang.nested_pass import NestedPass, uploaded

_HOLE_TOKENS = 32
_CLOSE = 0.05
"""How far a shared pass may be from two passes, of what reading old K/V would make."""
_CLOSE_IN_DEPTH = 0.3
"""The same behind the first layer that looked: depth makes more of rounding."""
_ROUNDING = 1e-2
"""The same, of the K/V itself: kernels add up in another order where a batch is larger."""
_OLD = 4.0
"""What stands in slots that are to be computed: larger than the K/V of any model."""


class Trial(Protocol):
    """A prompt of three runs in the engine, of which the outer two are holes."""

    def compute(self, *holes: Hole) -> None:
        """One pass over these."""
        ...

    def spoil(self, *holes: Hole) -> None:
        """Overwrite the K/V of these."""
        ...

    def kv(self, *holes: Hole) -> torch.Tensor:
        """The K/V of these, [layers, ...]."""
        ...


def holes_share_a_pass(trial: Trial) -> bool:
    """Whether one pass over two holes leaves what two passes leave."""
    size = _HOLE_TOKENS
    first, second = Hole(0, size), Hole(2 * size, 3 * size)
    trial.compute(Hole(0, 3 * size))

    def after(*passes: tuple[Hole, ...]) -> torch.Tensor:
        trial.spoil(first, second)
        for holes in passes:
            trial.compute(*holes)
        return trial.kv(first, second).double()

    apart = after((first,), (second,))
    together = after((first, second))
    blind = after((second,), (first,))
    close = _CLOSE
    for layer, expected in enumerate(apart):
        rounding = _ROUNDING * float(expected.norm())
        old = float((blind[layer] - expected).norm())
        if float((together[layer] - expected).norm()) > max(close * old, rounding):
            return False
        if old > rounding:  # the first layers' K/V depends on no attention
            close = _CLOSE_IN_DEPTH
    return True


def proven(runner: Any, cache: Any, nested: NestedPass) -> bool:
    """Whether holes share a pass in this engine; if that cannot be tried, they do not."""
    if nested.limits.sequences < 2 or nested.limits.tokens < 3 * _HOLE_TOKENS:
        return False
    try:
        with torch.inference_mode(), _trial(runner, cache, nested) as trial:
            shared = holes_share_a_pass(trial)
    except Exception:
        logger.warning("SemBlend could not try passes of several holes", exc_info=True)
        return False
    logger.info("SemBlend computes %s of a request in a pass", "holes" if shared else "one hole")
    return shared


class _EngineTrial:
    """The prompt in slots of the engine's pool, under a row of its table."""

    def __init__(self, runner: Any, nested: NestedPass, batch: Any, slots: torch.Tensor) -> None:
        self._pool = runner.token_to_kv_pool
        self._nested = nested
        self._batch = batch
        self._slots = slots

    def compute(self, *holes: Hole) -> None:
        self._nested.one_pass(self._batch, holes)

    def spoil(self, *holes: Hole) -> None:
        slots = self._of(holes)
        for buffer in (*self._pool.k_buffer, *self._pool.v_buffer):
            buffer[slots] = _OLD

    def kv(self, *holes: Hole) -> torch.Tensor:
        slots = self._of(holes)
        layers = zip(self._pool.k_buffer, self._pool.v_buffer, strict=True)
        return torch.stack([torch.stack((k[slots], v[slots])) for k, v in layers]).cpu()

    def _of(self, holes: tuple[Hole, ...]) -> torch.Tensor:
        return torch.cat([self._slots[hole.start : hole.end] for hole in holes])


@contextmanager
def _trial(runner: Any, cache: Any, nested: NestedPass) -> Iterator[Trial]:
    """Slots and a row are the engine's own and are given back as they were: nothing runs yet."""
    from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
    from sglang.srt.model_executor.forward_batch_info import ForwardMode
    from sglang.srt.sampling.sampling_params import SamplingParams
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    size, vocabulary = 3 * _HOLE_TOKENS, int(runner.model_config.vocab_size)
    request = Req(
        rid="semblend-trial",
        origin_input_text="",
        origin_input_ids=[1 + 7 * n % (vocabulary - 1) for n in range(size)],
        sampling_params=SamplingParams(max_new_tokens=1),
    )
    request.full_untruncated_fill_ids = request.origin_input_ids
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
    batch.req_pool_indices = uploaded([row], runner.device)
    slots = allocator.alloc(-(-size // cache.page_size) * cache.page_size)
    line = pool.req_to_token[row]
    kept = line[: len(slots)].clone()
    try:
        line[: len(slots)] = slots.to(line.dtype)
        yield _EngineTrial(runner, nested, batch, slots.to(torch.int64))
    finally:
        line[: len(slots)] = kept
        allocator.free(slots)
