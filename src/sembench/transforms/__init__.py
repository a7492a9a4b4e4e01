"""Transforms: how a document and a question become donors and a recipient."""

from __future__ import annotations

from sembench.transforms.base import Reuse, Toolbox, Transform
from sembench.transforms.registry import TRANSFORMS, transforms_named

__all__ = ["TRANSFORMS", "Reuse", "Toolbox", "Transform", "transforms_named"]
