"""MiniLM on an NVIDIA GPU through onnxruntime, or not at all.

If CUDA does not start, onnxruntime continues on the CPU. On a serving machine that would take the
engine's cores, so this embedder fails instead.
"""

from __future__ import annotations

from semblend.discovery.embedders.onnx import OnnxEmbedder

CUDA = "CUDAExecutionProvider"


class OnnxGpuEmbedder(OnnxEmbedder):
    """An ONNX sentence model on CUDA."""

    name = "onnx_gpu"
    extra = "onnx-gpu"
    provider = CUDA
    max_windows = 256
