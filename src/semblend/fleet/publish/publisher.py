"""The publisher: tells the fleet about a worker's donors, off the path of any request.

`say` puts an event into a bounded queue and returns. A separate thread numbers the events
and sends them, and keeps trying while the log cannot be reached. If the queue overflows
meanwhile, it is discarded, and once the log is back the rank starts over: a generation
reset, then everything the worker holds by then.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, TypeAlias

from semblend.core.faults import FaultPoint, clock_jump_s, reach
from semblend.fleet.events.event_values import (
    DonorEvicted,
    DonorRegistered,
    DonorRelocated,
    DonorsPurged,
    Event,
    EventData,
    GenerationReset,
    Heartbeat,
)
from semblend.fleet.publish.sink import EventSink

logger = logging.getLogger("semblend.fleet")

Sayable: TypeAlias = EventData | Callable[[], EventData | None]
"""An event, or a function that makes one when its turn comes."""

_BATCH_EVENTS = 256
_COMPACT_FACTOR = 4
_MIN_COMPACT_EVENTS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class PublisherOptions:
    """Limits of one publisher."""

    queue_events: int = 65_536
    """Events that may wait; above this, the rank starts over as soon as it can."""
    heartbeat_s: float = 2.0
    min_resync_s: float = 5.0
    """How often directories that ask for everything again are granted it."""
    first_retry_s: float = 0.05
    last_retry_s: float = 2.0


@dataclass(slots=True)
class PublisherStats:
    """Counts since the start; written only by the publisher's thread."""

    sent: int = 0
    failures: int = 0
    overflows: int = 0
    resyncs: int = 0
    waiting: int = 0


class Publisher:
    """Owns a rank's event ids and generation; never blocks and never raises to its caller.

    Parameters
    ----------
    inventory
        Everything the worker holds now, as registrations. Called on the publisher's
        thread, after everything said before has happened.
    holding
        How many donors the worker holds now; a log several times as long is compacted.
    """

    def __init__(
        self,
        sink: EventSink,
        *,
        worker_id: str,
        dp_rank: int = 0,
        inventory: Callable[[], Iterable[Sayable]] = tuple,
        holding: Callable[[], int] | None = None,
        namespace: Mapping[str, Any] | None = None,
        options: PublisherOptions | None = None,
    ) -> None:
        self.worker_id = worker_id
        self.dp_rank = dp_rank
        self.stats = PublisherStats()
        self.generation = 0
        self._sink = sink
        self._inventory = inventory
        self._holding = holding
        self._namespace = dict(namespace or {})
        self._options = options or PublisherOptions()
        self._queue: deque[Sayable] = deque()
        self._backlog: Iterator[Sayable] = iter(())
        self._unsent: list[Event] = []
        self._next_id = 0
        self._since_reset = 0
        self._last_reset: Event | None = None
        self._start_anew = True
        self._resynced_at = float("-inf")
        self._beat_at = 0.0
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._idle = threading.Condition(self._lock)
        self._sending = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="semblend-events", daemon=True)
        self._thread.start()

    # -- any thread ----------------------------------------------------------------

    def say(self, data: Sayable) -> None:
        """Publish soon. The generation of `data` is set when it is sent.

        A function is called on the publisher's thread and may return None to publish nothing.
        """
        with self._lock:
            if len(self._queue) >= self._options.queue_events:
                self._queue.clear()
                self._start_anew = True
                self.stats.overflows += 1
            elif not self._start_anew:
                self._queue.append(data)
            self.stats.waiting = len(self._queue)
        self._wake.set()

    def resync(self) -> None:
        """Start over: reset the generation and resend everything."""
        with self._lock:
            self._start_anew = True
        self._wake.set()

    def wait(self, timeout_s: float = 30.0) -> bool:
        """Wait until everything said so far is in the log. For tests and clean shutdowns."""
        self._wake.set()
        with self._idle:
            return self._idle.wait_for(self._is_idle, timeout_s)

    def close(self, timeout_s: float = 5.0) -> None:
        """Announce that all donors are gone, if there is time, and stop."""
        self.say(DonorsPurged(generation=0))
        self.wait(timeout_s)
        self.abandon()

    def abandon(self) -> None:
        """Stop without announcing anything, as a crash would."""
        self._stop.set()
        self._wake.set()
        self._thread.join()
        self._sink.close()

    # -- the publisher's thread ------------------------------------------------------

    def _is_idle(self) -> bool:
        return not (self._queue or self._unsent or self._start_anew or self._sending)

    def _run(self) -> None:
        retry_s = self._options.first_retry_s
        while not self._stop.is_set():
            try:
                self._step()
            except BaseException as error:
                # Whatever the log's client raises, inference must not notice.
                self.stats.failures += 1
                level = logging.WARNING if retry_s == self._options.first_retry_s else logging.DEBUG
                logger.log(level, "events cannot be published: %s", error)
                self._stop.wait(retry_s)
                retry_s = min(retry_s * 2, self._options.last_retry_s)
            else:
                retry_s = self._options.first_retry_s
                self._wake.wait(max(0.0, self._beat_at - time.monotonic()))
                self._wake.clear()

    def _step(self) -> None:
        reach(FaultPoint.KILLED_WORKER)
        if not self._next_id:
            generation, event_id = self._sink.last_position(self.worker_id, self.dp_rank)
            self.generation, self._next_id = generation, event_id + 1
        if self._sink.asked_to_resync() and self._may_resync():
            self._start_anew = True
        while not self._stop.is_set():
            if self._start_anew:
                self._begin_anew()
            if not self._unsent:
                self._unsent = self._number_next()
            if not self._unsent:
                break
            reach(FaultPoint.EVENT_BUS)
            self._sink.send(self._unsent)
            self._sent(self._unsent)
        now = time.monotonic()
        if now >= self._beat_at:
            reach(FaultPoint.EVENT_BUS)
            self._sink.beat(
                Heartbeat(
                    worker_id=self.worker_id,
                    dp_rank=self.dp_rank,
                    generation=self.generation,
                    last_event_id=self._next_id - 1,
                )
            )
            self._beat_at = now + self._options.heartbeat_s

    def _may_resync(self) -> bool:
        return time.monotonic() - self._resynced_at >= self._options.min_resync_s

    def _begin_anew(self) -> None:
        with self._lock:
            # Everything said so far has happened, so the inventory includes it.
            self._queue.clear()
            self._start_anew = False
            self._sending = True
        self._unsent = []
        # Newer than any earlier life, even of a process whose log was lost.
        self.generation = max(self.generation + 1, _now_us())
        self._next_id = max(self._next_id, self.generation)
        reset = GenerationReset(generation=self.generation, namespace=self._namespace)
        self._unsent = [self._numbered(reset)]
        self._last_reset = self._unsent[0]
        self._backlog = iter(self._inventory())
        self._since_reset = 0
        self._resynced_at = time.monotonic()
        self._beat_at = 0.0
        self.stats.resyncs += 1

    def _number_next(self) -> list[Event]:
        batch: list[Sayable] = list(islice(self._backlog, _BATCH_EVENTS))
        with self._lock:
            if not batch:
                while self._queue and len(batch) < _BATCH_EVENTS:
                    batch.append(self._queue.popleft())
                self.stats.waiting = len(self._queue)
            self._sending = bool(batch)
            if not batch:
                self._idle.notify_all()
        said = map(_made, batch)
        numbered = [self._numbered(data) for data in said if data is not None]
        # An empty batch does not mean that the queue is empty.
        return numbered or (self._number_next() if batch else [])

    def _numbered(self, data: EventData) -> Event:
        event = Event(
            event_id=self._next_id,
            worker_id=self.worker_id,
            dp_rank=self.dp_rank,
            data=_of_generation(data, self.generation),
        )
        self._next_id += 1
        return event

    def _sent(self, events: list[Event]) -> None:
        self._unsent = []
        self.stats.sent += len(events)
        self._since_reset += len(events)
        if self._last_reset is not None and events[0] is self._last_reset:
            self._sink.compact(self._last_reset)
        elif self._holding is not None and self._since_reset > max(
            _MIN_COMPACT_EVENTS, _COMPACT_FACTOR * self._holding()
        ):
            # The log is several times as long as its content: resend everything and drop the past.
            self._start_anew = True


def _made(data: Sayable) -> EventData | None:
    """Make the event to publish; None if that failed.

    Only registrations are made late, so a failure loses one donor. An exception here would
    also lose the evictions of its batch, which must not happen.
    """
    if not callable(data):
        return data
    try:
        return data()
    except Exception as error:
        logger.warning("a donor could not be announced: %s", error)
        return None


def _now_us() -> int:
    return int((time.time() + clock_jump_s()) * 1e6)


def _of_generation(data: EventData, generation: int) -> EventData:
    match data:
        case DonorRegistered() | DonorEvicted() | DonorsPurged() | DonorRelocated():
            return replace(data, generation=generation)
        case _:
            return data
