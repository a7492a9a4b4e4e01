"""What all ranks have done: the only thing the leader acts on.

Every rank is given the same orders and keeps the same list of those that are open. At one
point of every step that all ranks reach together (`get_finished`, where TensorRT-LLM itself
gathers), they exchange which of them are done, and strike from the list what everybody has
answered; so the lists stay alike, and a rank knows from its own list whether to exchange.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from semblend.integration.trtllm.metadata import ConnectorMeta, RankReport

Order = tuple[str, int]
"""("load" or "capture", its number)."""
Answers = dict[Order, str | None]
Gather = Callable[[Answers], list[Answers]]


class Agreement:
    """One rank's part in it. Local answers may come from any thread."""

    def __init__(
        self, *, ranks: int, gather: Gather, tell: Callable[[RankReport], None] | None
    ) -> None:
        """`tell` is the leader's: it is called with what everybody has answered."""
        self._ranks = ranks
        self._gather = gather
        self._tell = tell
        self._open: set[Order] = set()
        self._mine: Answers = {}
        self._lock = threading.Lock()

    def expect(self, meta: ConnectorMeta) -> None:
        """The orders every rank was just given."""
        with self._lock:
            self._open.update(("load", load.load_id) for load in meta.loads)
            self._open.update(("capture", capture.capture_id) for capture in meta.captures)

    def answer(self, order: Order, failure: str | None = None) -> None:
        """This rank has carried an order out, or could not."""
        with self._lock:
            if self._ranks > 1:
                self._mine[order] = failure
                return
            self._open.discard(order)
        self._settle({order: failure})

    def exchange(self) -> None:
        """Called by all ranks at the same point of a step."""
        with self._lock:
            if self._ranks == 1 or not self._open:
                return
            mine = {order: failure for order, failure in self._mine.items() if order in self._open}
        everybody = self._gather(mine)
        settled: Answers = {}
        with self._lock:
            for order in sorted(self._open):
                if all(order in answers for answers in everybody):
                    failures = (answers[order] for answers in everybody)
                    settled[order] = next((text for text in failures if text is not None), None)
            self._open -= settled.keys()
            for order in settled:
                self._mine.pop(order, None)
        self._settle(settled)

    def _settle(self, settled: Answers) -> None:
        if self._tell is None or not settled:
            return
        report = RankReport()
        for (kind, number), failure in settled.items():
            (report.loads if kind == "load" else report.captures)[number] = failure
        self._tell(report)
