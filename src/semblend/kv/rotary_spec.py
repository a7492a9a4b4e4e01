"""A model's rotary embedding as a value. Kinds that prevent moving K are refused by name.

Moving K between positions is a rotation by the angle difference only if the angle is a fixed
multiple of the position. That is true of the kinds in :class:`RotaryKind` and no others, so
everything else is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

import torch

from semblend.core.errors import UnsupportedRotaryError
from semblend.kv.rotary_config import ConfigReader, refuse_several, refuse_unmovable


class RotaryKind(StrEnum):
    """How inverse frequencies follow from theta."""

    DEFAULT = "default"
    LINEAR = "linear"
    LLAMA3 = "llama3"
    YARN = "yarn"


class Pairing(StrEnum):
    """Which two elements of a head are rotated together."""

    NEOX = "neox"
    """(i, i + rotary_dim / 2): Llama, Qwen, Mistral, GPT-NeoX."""
    INTERLEAVED = "interleaved"
    """(2i, 2i + 1): GPT-J, Cohere, GLM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RotarySpec:
    """Everything that determines a model's rotation of K.

    Only the first `rotary_dim` elements of a head rotate. `attention_factor` scales cosines and
    sines alike (YaRN) and cancels when K is moved.
    """

    head_dim: int
    rotary_dim: int
    theta: float
    max_positions: int
    kind: RotaryKind = RotaryKind.DEFAULT
    pairing: Pairing = Pairing.NEOX
    factor: float = 1.0
    attention_factor: float = 1.0
    original_max_positions: int | None = None
    """Context the model was trained on before scaling (llama3, yarn)."""
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    truncate: bool = True
    """Whether YaRN's ramp starts and ends on whole frequencies."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", RotaryKind(self.kind))
        object.__setattr__(self, "pairing", Pairing(self.pairing))
        if self.rotary_dim < 2 or self.rotary_dim % 2 or self.rotary_dim > self.head_dim:
            raise UnsupportedRotaryError(
                f"rotary_dim={self.rotary_dim}: expected an even number of at most "
                f"head_dim={self.head_dim}"
            )
        if self.theta <= 0 or self.factor <= 0 or self.attention_factor <= 0:
            raise UnsupportedRotaryError(
                f"theta={self.theta}, factor={self.factor} and "
                f"attention_factor={self.attention_factor} must all be above 0"
            )
        if self.max_positions < 1:
            raise UnsupportedRotaryError(f"max_positions={self.max_positions}: expected at least 1")
        for name in _NEEDED.get(self.kind, ()):
            if getattr(self, name) is None:
                raise UnsupportedRotaryError(f"rotary kind {self.kind.value!r} needs {name}")

    @classmethod
    def from_config(cls, config: Any, *, text_positions: bool = False) -> RotarySpec:
        """Read the spec from a transformers config (or its dictionary), old or new format.

        Parameters
        ----------
        text_positions
            Whether only K of text is moved; M-RoPE is then a plain rotation.

        Raises
        ------
        UnsupportedRotaryError
            Naming the kind or feature that prevents moving K.
        """
        reader = ConfigReader.of(config)
        refuse_several(reader)
        return cls._read(reader, text_positions=text_positions)

    @classmethod
    def by_layer_type(cls, config: Any, *, text_positions: bool = False) -> dict[str, RotarySpec]:
        """One spec per kind of layer; under an empty name if all layers rotate alike.

        With multi-head latent attention, of the numbers behind the latent ones: their count is the
        config's `qk_rope_head_dim`. `text_positions` as in `from_config`.

        Raises
        ------
        UnsupportedRotaryError
            Naming the kind or feature that prevents moving K.
        """
        readers = ConfigReader.of(config).by_layer_type()
        return {
            name: cls._read(reader, text_positions=text_positions)
            for name, reader in readers.items()
        }

    @classmethod
    def _read(cls, reader: ConfigReader, *, text_positions: bool) -> RotarySpec:
        refuse_unmovable(reader, text_positions=text_positions)
        kind = RotaryKind(reader.text_kind)
        llama3, yarn = kind is RotaryKind.LLAMA3, kind is RotaryKind.YARN
        return cls(
            kind=kind,
            pairing=Pairing.INTERLEAVED if reader.interleaved else Pairing.NEOX,
            head_dim=reader.head_dim,
            rotary_dim=reader.rotary_dim,
            theta=reader.theta,
            max_positions=reader.max_positions,
            factor=1.0 if kind is RotaryKind.DEFAULT else reader.factor,
            attention_factor=reader.yarn_attention_factor if yarn else 1.0,
            original_max_positions=reader.original_max_positions if llama3 or yarn else None,
            low_freq_factor=reader.number("low_freq_factor") if llama3 else None,
            high_freq_factor=reader.number("high_freq_factor") if llama3 else None,
            beta_fast=(reader.number("beta_fast") or 32.0) if yarn else None,
            beta_slow=(reader.number("beta_slow") or 1.0) if yarn else None,
            truncate=bool(reader.parameters.get("truncate", True)) if yarn else True,
        )

    def fingerprint(self) -> str:
        """Text that is equal exactly if two specs rotate alike. It is a namespace's `rope` part."""
        parts = [f"{f.name}={getattr(self, f.name)!s}" for f in fields(self)]
        return "rope:v1;" + ";".join(parts)

    def inverse_frequencies(self) -> torch.Tensor:
        """Radians by which a position turns each pair: fp32, shape [rotary_dim / 2].

        Deliberately fp32, as in models. At position 30,000 the rounding amounts to a thousandth of
        a radian.
        """
        exponents = torch.arange(0, self.rotary_dim, 2, dtype=torch.float32) / self.rotary_dim
        unscaled = 1.0 / (self.theta**exponents)
        if self.kind is RotaryKind.DEFAULT:
            return unscaled
        if self.kind is RotaryKind.LINEAR:
            return unscaled / self.factor
        kept = self._llama3_kept(unscaled) if self.kind is RotaryKind.LLAMA3 else self._yarn_kept()
        return unscaled * (kept + (1.0 - kept) / self.factor)

    def _llama3_kept(self, unscaled: torch.Tensor) -> torch.Tensor:
        """Share of each frequency left unchanged: 1 for short waves, 0 for long ones."""
        context = self._stated("original_max_positions")
        low, high = self._stated("low_freq_factor"), self._stated("high_freq_factor")
        turns = context * unscaled / (2 * torch.pi)
        return ((turns - low) / (high - low)).clamp(0.0, 1.0)

    def _yarn_kept(self) -> torch.Tensor:
        """Share of each frequency left unchanged: 1 up to beta_fast turns, 0 from beta_slow on."""
        first = self._yarn_index(self._stated("beta_fast"))
        last = self._yarn_index(self._stated("beta_slow"))
        if self.truncate:
            first, last = first.floor(), last.ceil()
        first, last = first.clamp(min=0), last.clamp(max=self.rotary_dim - 1)
        width = (last - first) if last != first else torch.tensor(0.001, dtype=torch.float64)
        index = torch.arange(self.rotary_dim // 2, dtype=torch.float64)
        return (1.0 - ((index - first) / width).clamp(0.0, 1.0)).float()

    def _yarn_index(self, turns: float) -> torch.Tensor:
        """The (fractional) pair that turns this often over the original context."""
        wavelengths = self._stated("original_max_positions") / (turns * 2 * torch.pi)
        log = torch.tensor([wavelengths, self.theta], dtype=torch.float64).log()
        return self.rotary_dim * log[0] / (2 * log[1])

    def _stated(self, name: str) -> float:
        """A parameter that `__post_init__` has required for this kind."""
        return float(getattr(self, name))


_NEEDED: dict[RotaryKind, tuple[str, ...]] = {
    RotaryKind.LLAMA3: ("original_max_positions", "low_freq_factor", "high_freq_factor"),
    RotaryKind.YARN: ("original_max_positions", "beta_fast", "beta_slow"),
}
