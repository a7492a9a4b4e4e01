"""Reads rotary parameters from a model's config, old or new.

Transformers 5 keeps everything in `rope_parameters`. Before, it was spread over `rope_theta`,
`rope_scaling`, `partial_rotary_factor`, `rotary_pct` and `rotary_dim`. Features that prevent moving
K are refused by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from semblend.core.errors import UnsupportedRotaryError

INTERLEAVED_MODELS = frozenset(
    {"codegen", "cohere", "ernie4_5", "ernie4_5_moe", "glm", "glm4", "gptj", "helium"}
)
"""Model types whose own code pairs (2i, 2i + 1). No config says so. The start-up self-test refuses
a model that is missing here.
"""

_MIXED_POSITION_MODELS = frozenset({"cohere2", "cohere2_moe", "exaone4", "llama4", "llama4_text"})
_REWRITTEN = {"deepseek_yarn": "yarn", "deepseek_llama_scaling": "yarn"}
"""What vLLM puts in place of a kind while it loads a model."""
_SUPPORTED = ("default", "linear", "llama3", "yarn")
_BY_LENGTH = {
    "dynamic": "dynamic NTK: frequencies change with the length of the sequence",
    "longrope": "longrope: frequencies change with the length of the sequence",
    "su": "longrope: frequencies change with the length of the sequence",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigReader:
    """A config with its rotary parameters gathered. Reading never changes the config."""

    get: Callable[[str], Any]
    """A config attribute by name, or None."""
    parameters: Mapping[str, Any]

    @classmethod
    def of(cls, config: Any) -> ConfigReader:
        """A reader for a config object or for the dictionary of its JSON."""
        if isinstance(config, Mapping):
            get: Callable[[str], Any] = config.get
        else:

            def get(name: str) -> Any:
                return getattr(config, name, None)

        parameters = get("rope_parameters") or get("rope_scaling") or {}
        if not isinstance(parameters, Mapping):
            raise UnsupportedRotaryError(f"rope_parameters: expected a mapping, got {parameters!r}")
        return cls(get=get, parameters=parameters)

    def by_layer_type(self) -> dict[str, ConfigReader]:
        """A reader per kind of layer, where parameters differ by it; else this one, without a name.

        Raises
        ------
        UnsupportedRotaryError
            If some parameters belong to a kind of layer and others do not.
        """
        nested = {k: v for k, v in self.parameters.items() if isinstance(v, Mapping)}
        if not nested:
            return {"": self}
        if len(nested) != len(self.parameters):
            rest = sorted(set(self.parameters) - set(nested))
            raise UnsupportedRotaryError(
                f"rope_parameters: {', '.join(rest)} beside those of {', '.join(nested)}"
            )
        return {name: replace(self, parameters=nested[name]) for name in sorted(nested)}

    @property
    def kind(self) -> str:
        """The kind's name in the config."""
        name = self.parameters.get("rope_type") or self.parameters.get("type") or "default"
        return _REWRITTEN.get(str(name), str(name))

    @property
    def text_kind(self) -> str:
        """The kind of the positions of text: M-RoPE's turn as plain ones do."""
        return "default" if self.kind == "mrope" else self.kind

    @property
    def by_length(self) -> bool:
        """Whether frequencies follow from a length: the sequence's, or one an engine fixes."""
        return self.kind in _BY_LENGTH

    @property
    def model_type(self) -> str:
        return str(self.get("model_type") or "")

    @property
    def interleaved(self) -> bool:
        """Whether this model family pairs neighbours."""
        stated = self.get("rope_interleave")  # of models with latent rows
        return self.model_type in INTERLEAVED_MODELS or (
            self.latent_dim > 0 and (stated is None or bool(stated))
        )

    @property
    def latent_dim(self) -> int:
        """Numbers of a row before those that rotate, with multi-head latent attention; else 0."""
        return int(self.get("kv_lora_rank") or 0)

    @property
    def head_dim(self) -> int:
        """Size of one head of K; of what rotates of a row of latents."""
        if self.latent_dim:
            if not self.get("qk_rope_head_dim"):
                raise UnsupportedRotaryError("config: expected qk_rope_head_dim")
            return int(self.get("qk_rope_head_dim"))
        if self.get("head_dim"):
            return int(self.get("head_dim"))
        hidden = self.get("hidden_size") or self.get("n_embd")
        heads = self.get("num_attention_heads") or self.get("n_head")
        if not hidden or not heads:
            raise UnsupportedRotaryError(
                "config: expected head_dim, or hidden_size and num_attention_heads"
            )
        return int(hidden) // int(heads)

    @property
    def rotary_dim(self) -> int:
        """Rotating elements of a head. Partial rotary embeddings rotate only the first part."""
        if self.latent_dim:
            return self.head_dim
        share = self.number("partial_rotary_factor")
        if share is None and self.get("rotary_dim"):
            return int(self.get("rotary_dim"))
        if share is None:
            share = self.get("partial_rotary_factor") or self.get("rotary_pct") or 1.0
        return int(self.head_dim * float(share))

    @property
    def theta(self) -> float:
        """Base of the wavelengths."""
        theta = self.number("rope_theta") or self.get("rope_theta") or self.get("rotary_emb_base")
        if theta is None and self.model_type in ("gptj", "codegen"):
            theta = 10_000.0  # these two have it in their code, not in their config
        if theta is None:
            raise UnsupportedRotaryError(
                f"config of model type {self.model_type!r} has no rope_theta: "
                f"the model has no known rotary embedding"
            )
        return float(theta)

    @property
    def max_positions(self) -> int:
        """Number of positions the model supports."""
        value = self.get("max_position_embeddings") or self.get("n_positions")
        if not value:
            raise UnsupportedRotaryError("config: expected max_position_embeddings")
        return int(value)

    @property
    def original_max_positions(self) -> int:
        """Context before scaling. A value outside the rotary parameters takes precedence."""
        value = self.get("original_max_position_embeddings") or self.number(
            "original_max_position_embeddings"
        )
        return int(value or self.max_positions)

    @property
    def factor(self) -> float:
        """How much the context was stretched."""
        stated = self.number("factor")
        return self.max_positions / self.original_max_positions if stated is None else stated

    @property
    def yarn_attention_factor(self) -> float:
        """YaRN's factor for cosines and sines (arXiv 2309.00071, and DeepSeek's mscale)."""
        stated = self.number("attention_factor")
        if stated is not None:
            return stated
        above, below = self.number("mscale"), self.number("mscale_all_dim")
        if above and below:
            return self._mscale(above) / self._mscale(below)
        return self._mscale(1.0)

    def _mscale(self, weight: float) -> float:
        return 1.0 if self.factor <= 1.0 else 0.1 * weight * math.log(self.factor) + 1.0

    def number(self, name: str) -> float | None:
        """A rotary parameter as a number, or None if it is missing."""
        value = self.parameters.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UnsupportedRotaryError(
                f"rope_parameters.{name}: expected a number, got {value!r}"
            )
        return float(value)


def refuse_several(reader: ConfigReader) -> None:
    """Refuse, by name, K that is not moved by one rotation of whole heads on all layers.

    Raises
    ------
    UnsupportedRotaryError
        Naming the feature.
    """
    parameters = reader.parameters
    per_layer = [name for name, value in parameters.items() if isinstance(value, Mapping)]
    if per_layer:
        raise UnsupportedRotaryError(
            f"rotary parameters differ by layer type ({', '.join(per_layer)}): one rotation "
            f"does not fit all layers"
        )
    if reader.latent_dim:
        raise UnsupportedRotaryError("MLA (kv_lora_rank): K is stored compressed")


def refuse_unmovable(
    reader: ConfigReader, *, text_positions: bool = False, fixed_length: bool = False
) -> None:
    """Refuse, by name, every feature that prevents moving K of one kind of layer.

    Parameters
    ----------
    text_positions
        Whether all positions are those of text, which M-RoPE gives on all axes alike.
    fixed_length
        Whether the engine fixes the length that frequencies follow from, for all sequences.

    Raises
    ------
    UnsupportedRotaryError
        Naming the feature.
    """
    parameters = reader.parameters
    for name in ("rope_local_base_freq", "local_rope_theta", "global_rope_theta"):
        if reader.get(name) is not None:
            raise UnsupportedRotaryError(f"{name}: rotary parameters differ by layer")
    without = reader.get("no_rope_layers")
    if reader.model_type in _MIXED_POSITION_MODELS or (without and not all(without)):
        raise UnsupportedRotaryError(
            f"model type {reader.model_type!r} has layers without rotary positions (NoPE)"
        )
    if not text_positions and (
        reader.kind == "mrope" or "mrope_section" in parameters or "mrope_interleaved" in parameters
    ):
        raise UnsupportedRotaryError("M-RoPE: positions have several axes")
    kind = reader.text_kind
    if kind in _BY_LENGTH:
        if fixed_length:
            return
        raise UnsupportedRotaryError(_BY_LENGTH[kind])
    if kind not in _SUPPORTED:
        raise UnsupportedRotaryError(
            f"unknown rotary kind {kind!r}; expected one of {', '.join(_SUPPORTED)}"
        )
