"""Speculative decoding: which drafters are proven, and which layers are theirs.

The model verifies what a drafter proposes, so answers do not depend on a drafter's K/V: wrong K/V
there only lowers the share of drafts that are accepted. Layers of a drafter (EAGLE) share the
model's cache group, so their K/V is captured and moved with the model's, and a nested pass runs
the drafter over the holes once the model has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from semblend.core.errors import UnsupportedModelError
from semblend.core.namespace import NONE
from semblend.integration.loaded_model import model_identity
from semblend.integration.refusals import Refusal

if TYPE_CHECKING:
    import torch  # the doctor reads this without it

PLAIN = ("ngram", "ngram_gpu")
"""Drafters without K/V."""
LAYERED = ("eagle",)
"""Drafters whose layers' K/V lies beside the model's."""

Layer = TypeVar("Layer")


def speculation_refusals(config: Any) -> list[Refusal]:
    """Refused if drafts come from a drafter that reuse was not proven with."""
    method = _method(config)
    if method is None or method in (*PLAIN, *LAYERED):
        return []
    return [
        Refusal(
            feature=f"speculative decoding ({method})",
            remedy=f"proven with {', '.join((*PLAIN, *LAYERED))}",
        )
    ]


def drafts_from_layers(config: Any) -> bool:
    """Whether a drafter has layers with K/V."""
    return _method(config) in LAYERED


def drafter_name(config: Any) -> str:
    """The drafter whose K/V donors hold too, by its weights; "none" if they hold none."""
    if not drafts_from_layers(config):
        return NONE
    draft = config.speculative_config.draft_model_config
    weights = model_identity.weights_by_content(str(draft.model), draft.hf_config, draft.revision)
    return f"{_method(config)}:{weights}"


def speculation_name(config: Any) -> str:
    """How drafts are made, as certificates name it; "none" if there are none."""
    method = _method(config)
    if method is None:
        return NONE
    return drafter_name(config) if method in LAYERED else method


def drafter_last(layers: Mapping[str, Layer], config: Any) -> tuple[dict[str, Layer], int]:
    """Attention layers by name, the model's own first, and how many a drafter has.

    vLLM numbers a drafter's layers on from the model's.
    """
    if not drafts_from_layers(config):
        return dict(layers), 0
    count = int(config.model_config.get_num_layers(config.parallel_config))
    theirs = {name: layer for name, layer in layers.items() if _index(name) >= count}
    own = {name: layer for name, layer in layers.items() if name not in theirs}
    return {**own, **theirs}, len(theirs)


def check_own_layers(model: torch.nn.Module, own: set[str]) -> None:
    """Check that the layers taken for the model's are those the model has.

    Raises
    ------
    UnsupportedModelError
        If they are not.
    """
    held = {str(name) for module in model.modules() if (name := _layer_name(module)) is not None}
    if own != held:
        raise UnsupportedModelError(
            f"layers {sorted(own ^ held)} are neither the model's nor the drafter's for certain"
        )


class DraftPass:
    """Runs the drafter where the model has just run, so that it has K/V of the same tokens."""

    def __init__(self, runner: Any) -> None:
        """Find the drafter in either of vLLM's model runners."""
        drafter: Any = getattr(runner, "drafter", None) or getattr(runner, "speculator", None)
        self._drafter = drafter.model

    def __call__(
        self, next_tokens: torch.Tensor, positions: torch.Tensor, hidden: torch.Tensor
    ) -> None:
        """Draft from the model's hidden states and the tokens that follow; only K/V is kept."""
        self._drafter(input_ids=next_tokens, positions=positions, hidden_states=hidden)


def _method(config: Any) -> str | None:
    speculative = config.speculative_config
    return None if speculative is None else str(speculative.method)


def _index(name: str) -> int:
    from vllm.model_executor.models.utils import extract_layer_index

    return int(extract_layer_index(name))


def _layer_name(module: torch.nn.Module) -> Any:
    """The name of an attention layer that has K/V; None of any other module."""
    return getattr(module, "layer_name", None) if hasattr(module, "kv_cache") else None
