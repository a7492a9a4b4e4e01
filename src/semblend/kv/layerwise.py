"""Copies donor K/V from host memory a few layers at a time, while earlier layers are computed.

Reading all spans before the pass would make a request wait for the bus. Layer n needs only layer n.
A side stream copies layers in advance into a small ring on the device. When the pass reaches a
layer, it waits only for that layer's copy and rotates it into the request's slots. If a pass
computes longer than the bus needs, loading is free except for the first layer. Later layers are
copied several at a time, because a copy costs the host ten microseconds whatever its size, and a
long prompt has many segments.

A segment is copied whole, because that is one plain copy: its layers are contiguous. If only little
of a segment is needed, the kernel reads that part directly over the bus.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch

from semblend.core.errors import PlanError
from semblend.kv import torch_copy
from semblend.kv.depth_drift import DepthDrift
from semblend.kv.in_flight import IN_FLIGHT
from semblend.kv.layer_rotary import Rotary
from semblend.kv.paged_kv import PagedKv
from semblend.kv.span_batch import CopyBatch, Destination, SpanCopy, flat_batch, flattened

CHUNK_LAYERS = 4
"""Layers copied together, after the first few."""
RING = 3
"""Chunks in flight at once. Limits the memory a load takes besides the pool."""
DIRECT_SHARE = 0.5
"""Segments of which a smaller share is read are not copied whole."""
ALL_DIRECT = 2.0
"""Copy no segment before it is placed."""

Check = Callable[[], bool]
"""Whether a piece of leased K/V has its checksum. Thread-safe."""
Placer = Callable[[range], None]
"""Puts layers in place that have arrived."""


def layer_chunks(layers: int, most: int = CHUNK_LAYERS) -> list[tuple[int, int]]:
    """Layers as half-open runs: one, one, two, four and so on, up to `most` at a time."""
    chunks: list[tuple[int, int]] = []
    while not chunks or chunks[-1][1] < layers:
        start = chunks[-1][1] if chunks else 0
        chunks.append((start, min(layers, start + min(most, max(1, start)))))
    return chunks


def chunk_layers(*, layer_bytes: int, staged_bytes: int) -> int:
    """Layers to copy together so that the ring takes about `staged_bytes`."""
    return max(1, min(CHUNK_LAYERS, staged_bytes // (RING * max(1, layer_bytes))))


class LayerwiseLoad:
    """One request's copies. Call it with each layer in turn, before that layer's attention.

    Spans already on the device are placed at once, in one launch. All input is validated on
    construction, before anything is written.
    """

    def __init__(
        self,
        pool: torch.Tensor | Destination,
        copies: Sequence[SpanCopy] | CopyBatch,
        rotary: Rotary,
        *,
        drift: DepthDrift | None = None,
        stream: torch.cuda.Stream | None = None,
        ring: int = RING,
        most_layers: int = CHUNK_LAYERS,
        direct_share: float = DIRECT_SHARE,
        checks: Sequence[Check] = (),
    ) -> None:
        """Validate everything and start the first copies.

        Parameters
        ----------
        drift
            If given, on the pool's device: shift what moved far to its new depth.
        stream
            Stream for copies from the host; the current one by default.
        most_layers
            Most layers to copy together.
        direct_share
            The kernel directly reads pinned segments of which a smaller share is needed.
        """
        self.checks = tuple(checks)
        """Checks that must pass before an answer based on this load is given."""
        self._pool = PagedKv.of_tensor(pool) if isinstance(pool, torch.Tensor) else pool
        self._rotary, self._drift, self._stream = rotary, drift, stream
        device = self._pool.device
        self._on_device = device.type == "cuda"
        self._by_kernel = self._on_device and isinstance(self._pool, PagedKv)
        spans = flattened(copies)
        self.tokens = len(spans)
        away = [not self._by_kernel or source.device != device for source in spans.sources]
        checked = flat_batch(self._pool, spans, rotary)
        self._chunks: list[tuple[int, int]] = []
        self._placed_chunks = self._sent = 0
        if checked is None:
            return
        self._place_now(spans.of_sources([not far for far in away]))
        far = spans.of_sources(away)
        if not len(far):
            return
        staged, direct = self._split(far, direct_share)
        # Without a bus there is nothing to hide: rows and tiles are made once for all layers.
        whole = not self._on_device and not len(staged)
        layers = self._pool.layer_count
        self._chunks = [(0, layers)] if whole else layer_chunks(layers, most_layers)
        self._ring = min(ring, len(self._chunks))
        self._stage(staged, direct)
        self._copied = [_event(self._on_device) for _ in range(self._ring)]
        self._placed = [_event(self._on_device) for _ in range(self._ring)]
        if stream is not None:
            # Earlier launches may still read the ring's memory.
            stream.wait_stream(torch.cuda.current_stream(device))
        self._send_until(self._ring)

    def __call__(self, layer: int) -> None:
        """Put `layer` in place, and all before it that are not."""
        while self._placed_chunks < len(self._chunks):
            number = self._placed_chunks
            first, end = self._chunks[number]
            if first > layer:
                return
            self._place_chunk(number % self._ring, range(first, end))
            self._placed_chunks += 1
            self._send_until(min(number + 1 + self._ring, len(self._chunks)))

    def place_all(self) -> None:
        """Put all layers in place. They are queued on the current stream on return."""
        self(self._pool.layer_count)

    @property
    def ends(self) -> tuple[int, ...]:
        """Where runs of layers that are placed together end; the last is the number of layers."""
        return tuple(end for _, end in self._chunks) or (self._pool.layer_count,)

    def _place_chunk(self, slot: int, layers: range) -> None:
        if self._on_device and self._stream is not None:
            torch.cuda.current_stream(self._pool.device).wait_event(self._copied[slot])
        for place in self._place[slot]:
            place(layers)
        if self._on_device:
            event = self._placed[slot]
            event.record(torch.cuda.current_stream(self._pool.device))
            if self._direct:
                IN_FLIGHT.hold(event, self._direct)

    def _place_now(self, batch: CopyBatch) -> None:
        """Copy what is already on the device."""
        if len(batch) and isinstance(self._pool, PagedKv):
            from semblend.kv import triton_copy

            triton_copy.copy_batch(self._pool, batch, self._rotary, drift=self._drift)

    def _stage(self, staged: CopyBatch, direct: CopyBatch) -> None:
        """Set up the ring, and for each of its places where sources go and how they leave it."""
        self._direct = direct.sources
        self._sources: list[tuple[torch.Tensor, int, int]] = []
        parts, (heads, dim) = self._pool.parts, self._pool.head_shape
        deep = max(end - first for first, end in self._chunks)
        sizes: list[int] = []
        for source, low, high in _rows_read(staged):
            if 2 * (high - low) >= source.shape[2] and source.is_contiguous():
                # The whole source is one plain copy; part of it would take two per layer.
                low, high = 0, source.shape[2]
            self._sources.append((source, low, high))
            sizes.append(deep * parts * (high - low) * heads * dim)
        staged_from = np.array([low for _, low, _ in self._sources], dtype=np.int64)
        staged = replace(
            staged, source_slots=staged.source_slots - staged_from[staged.source_numbers]
        )
        ring = torch.empty(
            (self._ring, sum(sizes)), dtype=self._pool.dtype, device=self._pool.device
        )
        if self._stream is not None:
            # An abandoned load has copies in flight, so nothing else may use their memory yet.
            ring.record_stream(self._stream)
        self._staged = [
            [part.view(deep, parts, -1, heads, dim) for part in place.split(sizes)] if sizes else []
            for place in ring
        ]
        placers = [self._placers(staged), self._direct_placers(direct)]
        self._place = [[kind[slot] for kind in placers if kind] for slot in range(self._ring)]

    def _split(self, batch: CopyBatch, direct_share: float) -> tuple[CopyBatch, CopyBatch]:
        """Split into what is copied to the ring and what the kernel reads in place."""
        staged = [
            high - low >= direct_share * source.shape[2] or not self._reads(source)
            for source, low, high in _rows_read(batch)
        ]
        return batch.of_sources(staged), batch.of_sources([not whole for whole in staged])

    def _reads(self, source: torch.Tensor) -> bool:
        """Whether the placing step can read a source in place."""
        return source.device == self._pool.device or (self._by_kernel and source.is_pinned())

    def _placers(self, batch: CopyBatch) -> list[Placer]:
        """For each place of the ring, the function that rotates it into the pool."""
        if not len(batch):
            return []
        parts = [replace(batch, sources=tuple(sources)) for sources in self._staged]
        pool, rotary, drift = self._pool, self._rotary, self._drift
        if not self._by_kernel or not isinstance(pool, PagedKv):
            return [_torch_placer(pool, part, rotary, drift) for part in parts]
        from semblend.kv import triton_copy

        prepared = triton_copy.prepare(pool, parts[0], drift=drift)

        def placer(base: torch.Tensor) -> Placer:
            # All places have the same layout, so distances between sources equal those of the
            # first.
            ready = replace(prepared, base=base)
            return lambda layers: triton_copy.launch(pool, ready, rotary, layers=layers)

        return [placer(sources[0]) for sources in self._staged]

    def _direct_placers(self, batch: CopyBatch) -> list[Placer]:
        """The same for what stays on the host until the kernel reads it."""
        pool, rotary, drift = self._pool, self._rotary, self._drift
        if not len(batch):
            return []
        if not self._by_kernel or not isinstance(pool, PagedKv):
            return [_torch_placer(pool, batch, rotary, drift, whole=True)] * self._ring
        from semblend.kv import triton_copy

        # Relative to the pool, because the launcher needs a device pointer.
        ready = triton_copy.prepare(pool, batch, base=pool.keys[0], drift=drift)

        def place(layers: range) -> None:
            triton_copy.launch(pool, ready, rotary, layers=layers, source_layer=layers.start)

        return [place] * self._ring

    def _send_until(self, chunk: int) -> None:
        """Start all copies before `chunk` that have not been started."""
        while self._sent < chunk and self._sources:
            slot = self._sent % self._ring
            if self._stream is None:
                self._send(self._sent, slot)
            else:
                with torch.cuda.stream(self._stream):
                    if self._sent >= self._ring:
                        self._stream.wait_event(self._placed[slot])
                    self._send(self._sent, slot)
            self._sent += 1

    def _send(self, chunk: int, slot: int) -> None:
        first, end = self._chunks[chunk]
        for (source, low, high), target in zip(self._sources, self._staged[slot], strict=True):
            if high - low == source.shape[2] and source.is_contiguous():
                target[: end - first].copy_(source[first:end], non_blocking=True)
                continue
            # Plain copies: one strided copy would go through a host buffer.
            for place, layer in enumerate(range(first, end)):
                for part in range(source.shape[1]):
                    target[place, part].copy_(source[layer, part, low:high], non_blocking=True)
        if self._on_device:
            event = self._copied[slot]
            event.record(torch.cuda.current_stream(self._pool.device))
            IN_FLIGHT.hold(event, self._sources)


def _rows_read(batch: CopyBatch) -> Iterator[tuple[torch.Tensor, int, int]]:
    """Each source of a batch, and the first and end of its rows that are read."""
    if not len(batch):
        return
    numbers, slots = batch.source_numbers, batch.source_slots
    # Tokens of one source are mostly adjacent, so group by run first, then by source.
    runs = np.flatnonzero(np.diff(numbers, prepend=-1))
    low = np.full(len(batch.sources), np.iinfo(np.int64).max)
    high = np.zeros(len(batch.sources), dtype=np.int64)
    np.minimum.at(low, numbers[runs], np.minimum.reduceat(slots, runs))
    np.maximum.at(high, numbers[runs], np.maximum.reduceat(slots, runs) + 1)
    for source, first, end in zip(batch.sources, low.tolist(), high.tolist(), strict=True):
        if isinstance(source, PagedKv):
            raise PlanError("span copies: a pool can only be copied from on its own device")
        yield source, first, end


def _torch_placer(
    pool: Destination,
    batch: CopyBatch,
    rotary: Rotary,
    drift: DepthDrift | None,
    *,
    whole: bool = False,
) -> Placer:
    """`whole` sources hold all layers, others only those being placed."""

    def place(layers: range) -> None:
        first = layers.start if whole else 0
        torch_copy.copy_batch(pool, batch, rotary, drift=drift, layers=layers, source_layer=first)

    return place


def _event(on_device: bool) -> torch.cuda.Event:
    return torch.cuda.Event() if on_device else None  # type: ignore[no-untyped-call,return-value]
