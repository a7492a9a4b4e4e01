"""Donor K/V from host memory, some layers at a time, while layers before are being computed.

Reading all spans before the pass would make a request wait for the bus. Layer n needs
only layer n: a side stream copies layers ahead into a small ring on the device, and
the pass, when it comes to a layer, waits for that layer's copy alone and rotates it
into the request's pages. Where a pass computes longer than the bus needs, loading is
free but for the first layer. Later layers travel several at a time: a copy costs the
host ten microseconds whatever its size, and a long prompt lies in many segments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch

from semblend.kv import torch_copy
from semblend.kv.layout import by_slot
from semblend.kv.rotary_table import RotaryTable
from semblend.kv.span_batch import CopyBatch, SpanCopy, flat_batch, flattened
from semblend.kv.transfer import copy_spans

CHUNK_LAYERS = 4
"""Layers that travel together, once the first few have."""
RING = 3
"""Chunks on their way at a time: bounds the memory a load takes beside the pool."""


Check = Callable[[], bool]
"""Whether a piece of leased K/V has its checksum; may be called from any thread."""


def layer_chunks(layers: int, most: int = CHUNK_LAYERS) -> list[tuple[int, int]]:
    """Layers as half-open runs: one, one, two, four and so on up to `most` at a time."""
    chunks: list[tuple[int, int]] = []
    while not chunks or chunks[-1][1] < layers:
        start = chunks[-1][1] if chunks else 0
        chunks.append((start, min(layers, start + min(most, max(1, start)))))
    return chunks


class LayerwiseLoad:
    """One request's copies; call it with each layer in turn, before that layer's attention.

    Spans already on the device are put in place at once, in one launch. Everything that
    can be refused is refused on construction, before anything is written.
    """

    def __init__(
        self,
        pool: torch.Tensor,
        copies: Sequence[SpanCopy] | CopyBatch,
        rotary: RotaryTable,
        *,
        stream: torch.cuda.Stream | None = None,
        ring: int = RING,
        checks: Sequence[Check] = (),
    ) -> None:
        self.checks = tuple(checks)
        """What must pass before an answer is given that rests on what this loads."""
        self._pool = by_slot(pool)
        self._rotary = rotary
        self._stream = stream
        spans = flattened(copies)
        self.tokens = len(spans)
        # Without a device there is no bus to hide; the order of things is the same.
        away = [stream is None or source.device != pool.device for source in spans.sources]
        batch = flat_batch(self._pool, spans.of_sources(away), rotary)
        copy_spans(pool, spans.of_sources([not far for far in away]), rotary)
        self._chunks = layer_chunks(self._pool.shape[0]) if batch is not None else []
        self._numbers = {first: number for number, (first, _) in enumerate(self._chunks)}
        self._sent = 0
        if batch is None:
            return
        self._ring = min(ring, len(self._chunks))
        self._stage(batch)
        self._copied = [_event(stream) for _ in range(self._ring)]
        self._placed = [_event(stream) for _ in range(self._ring)]
        if stream is not None:
            # The ring's memory may still be read by what was launched before.
            stream.wait_stream(torch.cuda.current_stream(pool.device))
        self._send_until(self._ring)

    def __call__(self, layer: int) -> None:
        """Put `layer` in place; the layers before must have been."""
        number = self._numbers.get(layer)
        if number is None:
            return
        slot = number % self._ring
        if self._stream is not None:
            torch.cuda.current_stream(self._pool.device).wait_event(self._copied[slot])
        first, end = self._chunks[number]
        self._place[slot](self._pool[first:end])
        if self._stream is not None:
            self._placed[slot].record(torch.cuda.current_stream(self._pool.device))
        self._send_until(min(number + 1 + self._ring, len(self._chunks)))

    def _stage(self, batch: CopyBatch) -> None:
        """The ring, and for each of its places where sources go and how they leave it."""
        heads, dim = self._pool.shape[3:]
        deep = max(end - first for first, end in self._chunks)
        self._sources: list[tuple[torch.Tensor, int, int]] = []
        sizes: list[int] = []
        for source, low, high in zip(batch.sources, *_rows_read(batch), strict=True):
            if 2 * (high - low) >= source.shape[2]:
                # The whole source is one plain copy; a part of it would be two a layer.
                low, high = 0, source.shape[2]
            self._sources.append((source, low, high))
            sizes.append(deep * 2 * (high - low) * heads * dim)
        staged_from = np.array([low for _, low, _ in self._sources])
        slots = batch.source_slots - staged_from[batch.source_numbers]
        ring = torch.empty(
            (self._ring, sum(sizes)), dtype=self._pool.dtype, device=self._pool.device
        )
        if self._stream is not None:
            # A load that is given up has copies under way: nobody else may have their memory yet.
            ring.record_stream(self._stream)
        self._staged = [
            [part.view(deep, 2, -1, heads, dim) for part in place.split(sizes)] for place in ring
        ]
        self._place = self._placers(replace(batch, source_slots=slots))

    def _placers(self, batch: CopyBatch) -> list[Callable[[torch.Tensor], None]]:
        """For each place of the ring, what rotates it into layers [layers, 2, slots, ...]."""
        parts = [replace(batch, sources=tuple(sources)) for sources in self._staged]
        if self._stream is None:
            return [_torch_placer(part, self._rotary) for part in parts]
        from semblend.kv import triton_kernels

        prepared = triton_kernels.prepare(self._pool.device, parts[0])

        def placer(part: CopyBatch) -> Callable[[torch.Tensor], None]:
            # Places lie alike, so that distances between sources are those of the first.
            ready = replace(prepared, sources=part.sources)
            return lambda layers: triton_kernels.launch(layers, ready, self._rotary)

        return [placer(part) for part in parts]

    def _send_until(self, chunk: int) -> None:
        """Start the copies of all chunks before `chunk` that were not started yet."""
        while self._sent < chunk:
            slot = self._sent % self._ring
            if self._stream is None:
                self._send(self._sent, slot)
            else:
                with torch.cuda.stream(self._stream):
                    if self._sent >= self._ring:
                        self._stream.wait_event(self._placed[slot])
                    self._send(self._sent, slot)
                    self._copied[slot].record(self._stream)
            self._sent += 1

    def _send(self, chunk: int, slot: int) -> None:
        first, end = self._chunks[chunk]
        for (source, low, high), target in zip(self._sources, self._staged[slot], strict=True):
            if high - low == source.shape[2]:
                target[: end - first].copy_(source[first:end], non_blocking=True)
                continue
            # Plain copies: one strided copy would go through a buffer on the host.
            for place, layer in enumerate(range(first, end)):
                for kv in (0, 1):
                    target[place, kv].copy_(source[layer, kv, low:high], non_blocking=True)


def _rows_read(batch: CopyBatch) -> tuple[list[int], list[int]]:
    """For each source of a batch the first of its rows that is read, and the end of them."""
    numbers, slots = batch.source_numbers, batch.source_slots
    # Tokens of one source mostly stand together: by run first, then by source.
    runs = np.flatnonzero(np.diff(numbers, prepend=-1))
    low = np.full(len(batch.sources), np.iinfo(np.int64).max)
    high = np.zeros(len(batch.sources), dtype=np.int64)
    np.minimum.at(low, numbers[runs], np.minimum.reduceat(slots, runs))
    np.maximum.at(high, numbers[runs], np.maximum.reduceat(slots, runs) + 1)
    return low.tolist(), high.tolist()


def _torch_placer(batch: CopyBatch, rotary: RotaryTable) -> Callable[[torch.Tensor], None]:
    def place(layers: torch.Tensor) -> None:
        depth = layers.shape[0]
        sources = tuple(source[:depth] for source in batch.sources)
        torch_copy.copy_batch(layers, replace(batch, sources=sources), rotary)

    return place


def _event(stream: torch.cuda.Stream | None) -> torch.cuda.Event:
    return torch.cuda.Event() if stream is not None else None  # type: ignore[no-untyped-call,return-value]
