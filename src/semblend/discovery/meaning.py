"""Finds donors by meaning, off the request path.

Donors are embedded on a separate thread with a bounded queue. If the queue is full, the newest is
dropped, and that donor is found only by its tokens. What is found here is evidence: a token is
reused only if alignment shows it is identical.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from semblend.core.plan import SimilarRegion
from semblend.core.settings import EmbedderKind
from semblend.core.tokens import TokenArray
from semblend.discovery.alignment import align
from semblend.discovery.embedders import Embedder, embedder_or_fallback
from semblend.discovery.runs import DonorRun
from semblend.discovery.vector_index import VectorIndex
from semblend.discovery.windows import PromptVectors, embed_text, similarity

logger = logging.getLogger("semblend.meaning")

CANDIDATES = 8
"""Donors whose windows are compared one by one after the first search."""
ALIGNED = 2
"""Donors to align a prompt with. Alignment costs milliseconds each."""
FUZZY_RUN_TOKENS = 16
"""Shortest identical run that fuzzy alignment contributes."""
QUEUE_LENGTH = 1024
QUERY_WINDOWS = 16
"""Windows embedded of a prompt for lookup: fewer than for a donor, to save time."""
SEARCHED_VECTORS = 8
"""A prompt's vectors used in the first search. The comparison after it uses all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Similar:
    """A donor found by meaning."""

    donor_id: str
    similarity: float
    """How much of the prompt is said somewhere in the donor (see windows.similarity)."""


@dataclass(frozen=True, slots=True)
class _Lesson:
    donor_id: str
    text: str
    namespace: bytes


class MeaningIndex:
    """Holds the embedder, its thread and the vectors of donors.

    The thread loads the embedder when there is something to embed, so building a pipeline never
    waits for a model.
    """

    def __init__(self, kind: EmbedderKind, model: str, min_similarity: float) -> None:
        self._kind = kind
        self._model = model
        self._min_similarity = min_similarity
        self._embedder: Embedder | None = None
        self._index: VectorIndex | None = None
        self._wanted: dict[str, bytes] = {}
        self._lessons: queue.Queue[_Lesson | None] = queue.Queue(QUEUE_LENGTH)
        self._thread: threading.Thread | None = None
        self._closed = False
        self._lock = threading.RLock()
        self.dropped = 0

    def __len__(self) -> int:
        return 0 if self._index is None else len(self._index)

    @property
    def embedder_name(self) -> str:
        """The embedder in use, or the configured one before it is first needed."""
        return self._kind.value if self._embedder is None else self._embedder.name

    def learn(self, donor_id: str, text: str, namespace: bytes) -> bool:
        """Queue a donor's text for embedding. False if it was dropped."""
        if self._kind is EmbedderKind.NONE or self._closed:
            return False
        with self._lock:
            self._start_thread()
            try:
                self._lessons.put_nowait(_Lesson(donor_id, text, namespace))
            except queue.Full:
                self.dropped += 1
                return False
            self._wanted[donor_id] = namespace
            return True

    def forget(self, donor_id: str) -> None:
        """Drop a donor's vectors, or cancel making them."""
        with self._lock:
            namespace = self._wanted.pop(donor_id, None)
            if namespace is not None and self._index is not None:
                self._index.remove(donor_id, namespace=namespace)

    def clear(self) -> None:
        with self._lock:
            for donor_id in list(self._wanted):
                self.forget(donor_id)

    def search(self, text: str, namespace: bytes) -> list[Similar]:
        """Donors that say much of what `text` says, best first. Embeds `text`."""
        index, embedder = self._index, self._embedder
        if index is None or embedder is None or not len(index):
            return []
        prompt = embed_text(embedder, text, max_windows=QUERY_WINDOWS)
        if not len(prompt.windows):
            return []
        found: list[Similar] = []
        asked = prompt.condensed(SEARCHED_VECTORS).windows
        for match in index.search(asked, CANDIDATES, namespace=namespace):
            vectors = index.get(match.donor_id, namespace=namespace)
            if vectors is None:  # evicted meanwhile
                continue
            alike = similarity(prompt.windows, vectors)
            if alike >= self._min_similarity:
                found.append(Similar(donor_id=match.donor_id, similarity=alike))
        found.sort(key=lambda similar: (-similar.similarity, similar.donor_id))
        return found

    def align(
        self,
        tokens: TokenArray,
        similar: Sequence[Similar],
        donor_tokens: Callable[[str], TokenArray | None],
    ) -> list[DonorRun]:
        """Identical runs that the prompt shares with the most similar donors."""
        runs: list[DonorRun] = []
        for candidate in similar[:ALIGNED]:
            donor = donor_tokens(candidate.donor_id)
            if donor is None:
                continue
            runs.extend(
                DonorRun(
                    donor_id=candidate.donor_id,
                    donor_start=run.donor_start,
                    target_start=run.target_start,
                    length=run.length,
                )
                for run in align(tokens, donor, min_run=FUZZY_RUN_TOKENS).runs
            )
        return runs

    @staticmethod
    def regions(runs: Sequence[DonorRun], window: int) -> tuple[SimilarRegion, ...]:
        """The differing text between neighbouring runs of one donor, up to `window` tokens."""
        found: list[SimilarRegion] = []
        for before, after in pairwise(sorted(runs, key=lambda r: (r.donor_id, r.target_start))):
            here = after.target_start - before.target_end
            there = after.donor_start - before.donor_start - before.length
            if before.donor_id == after.donor_id and 0 < here <= window and 0 < there <= window:
                found.append(
                    SimilarRegion(
                        donor_id=before.donor_id,
                        donor_start=after.donor_start - there,
                        donor_end=after.donor_start,
                        target_start=before.target_end,
                        target_end=after.target_start,
                    )
                )
        return tuple(found)

    def wait(self, timeout_s: float) -> bool:
        """Wait until the queue is empty. False on timeout."""
        deadline = threading.Event()
        timer = threading.Timer(timeout_s, deadline.set)
        timer.daemon = True
        timer.start()
        try:
            while self._lessons.unfinished_tasks and not deadline.is_set():
                deadline.wait(0.005)
            return not self._lessons.unfinished_tasks
        finally:
            timer.cancel()

    def close(self) -> None:
        """Stop the thread after its current donor. Queued ones are dropped."""
        with self._lock:
            self._closed = True
            thread, self._thread = self._thread, None
        if thread is None:
            return
        while True:
            try:
                self._lessons.get_nowait()
                self._lessons.task_done()
            except queue.Empty:
                break
        self._lessons.put(None)
        thread.join()

    def _start_thread(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._work, name="semblend-embedder", daemon=True
            )
            self._thread.start()

    def _work(self) -> None:
        while (lesson := self._lessons.get()) is not None:
            try:
                self._embed(lesson)
            except Exception:
                logger.warning("donor %s was not embedded", lesson.donor_id, exc_info=True)
            finally:
                self._lessons.task_done()
        self._lessons.task_done()

    def _embed(self, lesson: _Lesson) -> None:
        if self._embedder is None:
            embedder = embedder_or_fallback(self._kind, self._model)
            self._index = VectorIndex(embedder.dimension)
            self._embedder = embedder
        vectors: PromptVectors = embed_text(self._embedder, lesson.text)
        with self._lock:
            # If it was evicted while waiting, nothing would ever remove its vectors.
            wanted = self._wanted.get(lesson.donor_id) == lesson.namespace
            if wanted and self._index is not None and len(vectors.windows):
                self._index.add(lesson.donor_id, vectors.windows, namespace=lesson.namespace)
