"""vLLM's offloading on a CPU: its own scheduler and manager, and a worker that copies at once.

vLLM's worker for host memory needs a GPU. What is named how is decided in its scheduler, which is
vLLM's own here.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec


class CopyingWorker(OffloadingWorker):
    """Holds chunks in a dictionary."""

    def __init__(self, kv_caches: Any) -> None:
        self._tensors = [each.tensor for each in kv_caches.tensors]
        self._finished: list[TransferResult] = []
        self.chunks: dict[int, list[torch.Tensor]] = {}

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        for block, chunk in zip(src_spec.block_ids, dst_spec.block_ids, strict=True):
            self.chunks[int(chunk)] = [tensor[int(block)].clone() for tensor in self._tensors]
        self._finished.append(TransferResult(job_id, True))
        return True

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        for chunk, block in zip(src_spec.block_ids, dst_spec.block_ids, strict=True):
            for tensor, held in zip(self._tensors, self.chunks[int(chunk)], strict=True):
                tensor[int(block)].copy_(held)
        self._finished.append(TransferResult(job_id, True))
        return True

    def get_finished(self) -> list[TransferResult]:
        finished, self._finished = self._finished, []
        return finished

    def wait(self, job_ids: set[int]) -> None:
        """Nothing is ever under way."""


class PlainOffloading(CPUOffloadingSpec):
    """`spec_name` of an offloading connector that works on a CPU."""

    manager: ClassVar[Any] = None
    worker: ClassVar[Any] = None

    def get_manager(self) -> Any:
        PlainOffloading.manager = super().get_manager()
        return PlainOffloading.manager

    def get_worker(self, kv_caches: Any) -> Any:
        if PlainOffloading.worker is None or self._worker is None:
            self._worker = PlainOffloading.worker = CopyingWorker(kv_caches)
        return self._worker
