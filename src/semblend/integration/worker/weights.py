"""Detects that a running engine's weights have changed.

An adapter intercepts its engine's own methods that change weights. Any other change (by an
extension, or a function sent to the workers) is detected in the parameters: a few bytes of each
are compared before donors are used or made.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch

_SAMPLED_BYTES = 64
"""Per parameter. Even the smallest step of a training run changes a few per cent of all numbers of
a model, so some of the thousands compared have changed."""


class WeightWatch:
    """Remembers what a model's parameters look like."""

    @torch.inference_mode()
    def __init__(self, model: torch.nn.Module) -> None:
        self._parameters = tuple(model.parameters())
        self._samples = [_sample(parameter) for parameter in self._parameters]
        self._places = self._where()
        self._expected = self._taken()
        self._stream: Any = None
        if self._expected.device.type == "cuda":
            # Not the engine's stream: the comparison does not wait for the step in flight.
            self._stream = torch.cuda.Stream(  # type: ignore[no-untyped-call]
                self._expected.device
            )

    @torch.inference_mode()
    def changed(self) -> bool:
        """Whether some parameter has moved or differs."""
        if self._where() != self._places:
            return True
        with torch.cuda.stream(self._stream) if self._stream is not None else nullcontext():
            return not torch.equal(self._taken(), self._expected)

    def _where(self) -> tuple[int, ...]:
        return tuple(parameter.data_ptr() for parameter in self._parameters)

    def _taken(self) -> torch.Tensor:
        return torch.cat(self._samples) if self._samples else torch.empty(0, dtype=torch.uint8)


def _sample(parameter: torch.Tensor) -> torch.Tensor:
    """Bytes from its middle, uint8 [at most _SAMPLED_BYTES], a view."""
    data = parameter.detach()
    # As it lies in memory: some parameters are transposed views.
    data = data.permute(sorted(range(data.dim()), key=data.stride, reverse=True))
    while data.dim() > 1 and not data.is_contiguous():
        data = data[len(data) // 2]
    flat = data.reshape(-1)
    count = max(1, _SAMPLED_BYTES // flat.element_size())
    middle = max(0, (flat.numel() - count) // 2)
    return flat[middle : middle + count].view(torch.uint8)
