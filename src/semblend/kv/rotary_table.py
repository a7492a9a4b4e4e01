"""The cosine and sine rows a model rotates K with, and moving K between them.

Rows are read from the model itself if possible. Angles recomputed from a formula differ from the
model's by its rounding; its rows do not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from semblend.core.errors import PlanError, UnsupportedRotaryError
from semblend.kv.rotary_spec import Pairing, RotarySpec


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RotaryTable:
    """Rows of cosines and sines, one per position. Moves K by undoing one row and applying another.

    A common scale of the rows (YaRN's attention factor) cancels, so moving K never changes its
    length.
    """

    cos: torch.Tensor
    """fp32, shape [positions, rotary_dim / 2]."""
    sin: torch.Tensor
    """fp32, shape [positions, rotary_dim / 2]."""
    pairing: Pairing = Pairing.NEOX
    offset: int = 0
    """Numbers of a head before those that rotate: all that do not, or none. Set for MLA, whose rows
    are [latent, k_pe]."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "pairing", Pairing(self.pairing))
        if self.offset < 0:
            raise UnsupportedRotaryError(f"rotary offset {self.offset}: expected at least 0")
        if self.cos.ndim != 2 or self.cos.shape != self.sin.shape or 0 in self.cos.shape:
            raise UnsupportedRotaryError(
                f"rotary rows: expected two equal shapes [positions, rotary_dim / 2], got "
                f"{tuple(self.cos.shape)} and {tuple(self.sin.shape)}"
            )
        for name in ("cos", "sin"):
            rows = getattr(self, name).detach().to(torch.float32).contiguous()
            object.__setattr__(self, name, rows)

    @classmethod
    def from_spec(
        cls,
        spec: RotarySpec,
        *,
        positions: int | None = None,
        device: torch.device | str | None = None,
    ) -> RotaryTable:
        """Compute rows from a spec, for positions [0, positions)."""
        count = spec.max_positions if positions is None else positions
        angles = torch.arange(count, dtype=torch.float32)[:, None] * spec.inverse_frequencies()
        table = cls(
            cos=angles.cos() * spec.attention_factor,
            sin=angles.sin() * spec.attention_factor,
            pairing=spec.pairing,
        )
        return table if device is None else table.to(device)

    @classmethod
    @torch.no_grad()
    def from_model_rotary(
        cls,
        rotary_module: Any,
        positions: int,
        *,
        pairing: Pairing | str = Pairing.NEOX,
        dtype: torch.dtype = torch.float32,
    ) -> RotaryTable:
        """Get rows from a transformers rotary module (`model.model.rotary_emb`).

        Parameters
        ----------
        rotary_module
            Called as ``rotary_module(x, position_ids)``; returns cosines and sines of shape
            [1, positions, rotary_dim], each value twice.
        positions
            Number of rows, from position 0.
        dtype
            The model's compute type. Its rows are rounded to it, and only the rounded
            rows reproduce K at the new position.
        """
        _refuse_module(rotary_module)
        device = next((b.device for b in rotary_module.buffers()), torch.device("cpu"))
        cos, sin = rotary_module(
            torch.zeros(1, 1, dtype=dtype, device=device),
            torch.arange(positions, device=device)[None],
        )
        if cos.ndim != 3 or cos.shape[0] != 1:
            raise UnsupportedRotaryError(
                f"rotary module {type(rotary_module).__name__}: expected rows of shape "
                f"[1, positions, rotary_dim], got {tuple(cos.shape)} (M-RoPE?)"
            )
        pick = _row_halves(cos[0], type(rotary_module).__name__)
        return cls(cos=pick(cos[0]), sin=pick(sin[0]), pairing=Pairing(pairing))

    @classmethod
    def from_cos_sin_cache(
        cls, cache: torch.Tensor, *, pairing: Pairing | str = Pairing.NEOX, offset: int = 0
    ) -> RotaryTable:
        """Rows from an engine's cache, shape [positions, rotary_dim]: cosines, then sines."""
        if cache.ndim != 2 or cache.shape[1] % 2:
            raise UnsupportedRotaryError(
                f"cos_sin_cache: expected shape [positions, rotary_dim], got {tuple(cache.shape)}"
            )
        cos, sin = cache.chunk(2, dim=-1)
        return cls(cos=cos, sin=sin, pairing=Pairing(pairing), offset=offset)

    @property
    def positions(self) -> int:
        return self.cos.shape[0]

    @property
    def rotary_dim(self) -> int:
        """Rotating elements of a head."""
        return 2 * self.cos.shape[1]

    def to(self, device: torch.device | str) -> RotaryTable:
        return replace(self, cos=self.cos.to(device), sin=self.sin.to(device))

    @property
    def device(self) -> torch.device:
        return self.cos.device

    @property
    def rotating(self) -> slice:
        """Which numbers of a head rotate."""
        return slice(self.offset, self.offset + self.rotary_dim)

    def check_width(self, head_dim: int) -> None:
        """Refuse heads that are too narrow, or with numbers on both sides of the rotating ones.

        Raises
        ------
        UnsupportedRotaryError
            Naming both widths.
        """
        end = self.offset + self.rotary_dim
        if end > head_dim or (self.offset and end != head_dim):
            raise UnsupportedRotaryError(
                f"rotary rows: numbers [{self.offset}, {end}) rotate, heads have {head_dim}"
            )

    def runs(self, layers: range) -> Iterator[tuple[range, RotaryTable]]:
        """Layers that rotate alike, as runs: all of them."""
        yield layers, self

    def check_positions(self, lowest: int, highest: int) -> None:
        """Refuse positions without a row.

        Raises
        ------
        PlanError
            Naming the position and the number of rows.
        """
        if lowest < 0 or highest >= self.positions:
            wrong = lowest if lowest < 0 else highest
            raise PlanError(f"position {wrong}: the rotary table has rows [0, {self.positions})")

    def differences(
        self, source_positions: torch.Tensor, target_positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows that take K from one position to another; both fp32, [tokens, rotary_dim / 2].

        The target row times the source row's conjugate over its squared length. This exactly undoes
        what was applied, so a common scale cancels.
        """
        cos_from, sin_from = self.cos[source_positions], self.sin[source_positions]
        cos_to, sin_to = self.cos[target_positions], self.sin[target_positions]
        scale = 1.0 / (cos_from * cos_from + sin_from * sin_from)
        cos = (cos_to * cos_from + sin_to * sin_from) * scale
        sin = (sin_to * cos_from - cos_to * sin_from) * scale
        return cos, sin

    def rerotate(
        self,
        keys: torch.Tensor,
        source_positions: torch.Tensor,
        target_positions: torch.Tensor,
    ) -> torch.Tensor:
        """Move K from where it was computed to its new position.

        Parameters
        ----------
        keys
            Shape [..., tokens, heads, head_dim], rotated at `source_positions`.
        source_positions, target_positions
            Integers, shape [tokens].

        Returns
        -------
        torch.Tensor
            A new tensor of the same shape and type, computed in fp32. Tokens that do not
            move are copied bit for bit.
        """
        source = source_positions.to(device=keys.device, dtype=torch.int64)
        target = target_positions.to(device=keys.device, dtype=torch.int64)
        tokens, head_dim = keys.shape[-3], keys.shape[-1]
        if source.shape != (tokens,) or target.shape != (tokens,):
            raise PlanError(
                f"rerotate: expected one source and one target position for each of {tokens} "
                f"tokens, got {tuple(source.shape)} and {tuple(target.shape)}"
            )
        self.check_width(head_dim)
        result = keys.clone()
        if tokens == 0:
            return result
        both = torch.cat((source, target))
        self.check_positions(int(both.min()), int(both.max()))
        table = self if self.cos.device == keys.device else self.to(keys.device)
        moved = (source != target).nonzero().squeeze(-1)
        if moved.numel():
            cos, sin = table.differences(source[moved], target[moved])
            rotating = keys[..., moved, :, self.rotating].float()
            rotated = rotate(rotating, cos[:, None], sin[:, None], self.pairing)
            result[..., moved, :, self.rotating] = rotated.to(keys.dtype)
        return result


def rotate(
    rotating: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, pairing: Pairing
) -> torch.Tensor:
    """Rotate pairs of the last dimension, [..., rotary_dim], by rows [..., rotary_dim / 2]."""
    full_cos, full_sin = full_rows(cos, sin, pairing)
    return torch.addcmul(rotating * full_cos, swap_pairs(rotating, pairing), full_sin)


def full_rows(
    cos: torch.Tensor, sin: torch.Tensor, pairing: Pairing
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows as wide as what they rotate, so that a rotation is x * cos + swapped x * sin.

    On a CPU, one multiply-add over whole rows is 3-4 times as fast as working on halves.
    """
    if pairing is Pairing.NEOX:
        return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)
    return torch.stack((cos, cos), dim=-1).flatten(-2), torch.stack((-sin, sin), dim=-1).flatten(-2)


def swap_pairs(rotating: torch.Tensor, pairing: Pairing) -> torch.Tensor:
    """Swap the two elements of each pair; same shape, [..., rotary_dim]."""
    if pairing is Pairing.NEOX:
        return rotating.roll(rotating.shape[-1] // 2, dims=-1)
    pairs = rotating.reshape(*rotating.shape[:-1], -1, 2)
    return pairs.flip(-1).flatten(-2)


def _row_halves(rows: torch.Tensor, name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """How to pick one of each doubled value. Models double by halves or by neighbours."""
    half = rows.shape[-1] // 2
    if rows.shape[-1] % 2 == 0:
        if torch.equal(rows[:, :half], rows[:, half:]):
            return lambda values: values[:, :half]
        if torch.equal(rows[:, 0::2], rows[:, 1::2]):
            return lambda values: values[:, 0::2]
    raise UnsupportedRotaryError(
        f"rotary module {name}: its rows are doubled neither by halves nor by neighbours"
    )


def _refuse_module(rotary_module: Any) -> None:
    name = type(rotary_module).__name__
    kind = getattr(rotary_module, "rope_type", None)
    if isinstance(kind, dict):
        raise UnsupportedRotaryError(f"rotary module {name}: its rows differ by layer type")
    if kind in ("dynamic", "longrope"):
        raise UnsupportedRotaryError(f"rotary module {name}: {kind} changes with sequence length")
    if getattr(rotary_module, "mrope_section", None) is not None:
        raise UnsupportedRotaryError(f"rotary module {name}: M-RoPE")
