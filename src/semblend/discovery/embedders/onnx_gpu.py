"""MiniLM on an NVIDIA GPU through onnxruntime, or not at all.

onnxruntime goes on with the CPU where CUDA does not start. On a serving machine that
would take the engine's cores unasked, so this embedder refuses instead.
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
