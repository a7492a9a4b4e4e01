"""Test-only: lets torchvision be imported next to a CPU torch.

The registry's torchvision keeps its operators in a library that was linked against
CUDA. Without it the package cannot even be imported, and SGLang imports it for every
model. This declares the two schemas that the import asks for, with no kernels: nothing
that text models do calls them, and a call would fail loudly. Installed as a .pth file
by scripts/sglang_env.sh; it acts only when somebody imports torchvision.
"""

import importlib.abc
import sys

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


class _Declare(importlib.abc.MetaPathFinder):
    """Finds nothing; declares the schemas the first time torchvision is looked for."""

    def find_spec(self, fullname, path=None, target=None):
        if fullname == "torchvision":
            sys.meta_path.remove(self)
            import torch

            self.library = torch.library.Library("torchvision", "FRAGMENT")
            for schema in _SCHEMAS:
                self.library.define(schema)
            globals()["_kept"] = self
        return


sys.meta_path.insert(0, _Declare())
