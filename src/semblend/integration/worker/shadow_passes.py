"""The worker's part of shadow sampling: the same first output tokens over reused and cold K/V."""

from __future__ import annotations

import logging

import torch

from semblend.integration.scheduler.orders import ShadowOrder, WorkerReport
from semblend.integration.worker.port import Passes
from semblend.integration.worker.sequences import VirtualSequence, block_table

logger = logging.getLogger("semblend.adapter")


class ShadowPasses:
    """Computes samples in nested passes; keeps their distributions over reused K/V meanwhile.

    All ranks run the same passes in the same order. Logits are gathered where the engine
    gathers them; a rank without logits reports nothing.
    """

    def __init__(self, nested: Passes) -> None:
        self._nested = nested
        self._warm: dict[int, torch.Tensor] = {}
        """Log-probabilities over reused K/V, [compared, vocabulary], on the host."""

    def run(self, order: ShadowOrder, report: WorkerReport) -> None:
        """Compute one piece. Never raises: what fails ends the sample."""
        try:
            logits = self._nested.logits(
                VirtualSequence(
                    tokens=order.tokens,
                    start=order.start,
                    end=order.end,
                    blocks=block_table(order.block_ids),
                    adapter=order.adapter,
                ),
                last=order.compared,
            )
        except Exception as error:
            logger.warning("SemBlend drops a shadow sample: %s", error)
            self.drop(order.sample_id)
            report.shadow_failed.add(order.sample_id)
            return
        if order.warm:
            if logits is not None:
                self._warm[order.sample_id] = logits
            return
        report.shadow_done.add(order.sample_id)
        warm = self._warm.pop(order.sample_id, None) if order.compared else None
        if logits is not None and warm is not None:
            report.shadow_verdicts[order.sample_id] = compared(cold=logits, warm=warm)

    def drop(self, sample_id: int) -> None:
        """A sample ended."""
        self._warm.pop(sample_id, None)


def compared(*, cold: torch.Tensor, warm: torch.Tensor) -> tuple[float, float]:
    """Mean KL(cold || warm) in nats, and the share of rows whose best token differs.

    Both are log-probabilities, [tokens, vocabulary].
    """
    kl = float((cold.exp() * (cold - warm)).nan_to_num().sum(-1).clamp(min=0.0).mean())
    differs = float((cold.argmax(-1) != warm.argmax(-1)).float().mean())
    return kl, differs
