"""Depth drift: how K and V depend on the depth at which they were computed.

Besides a token's meaning, a model's K and V encode how much text came before it. Copied to another
depth, they keep the old value. On the reference model this one difference of means, the same for
all tokens, is most of what separates a reused passage from a cold one (docs/quality.md). A table
holds the mean at a number of depths. A moved passage gets the difference between the means of its
new and its old depth.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from semblend.core.errors import SerialisationError
from semblend.kv.layout import PARTS, SlotArray
from semblend.kv.rotary_table import RotaryTable, rotate

STEP_TOKENS = 16
"""Tokens that share one difference, because the means change slowly."""

SAME_DEPTH_TOKENS = 256
"""Passages that moved less are left unchanged: a different instruction hardly changes the depth."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DepthDrift:
    """Means of K and V by depth, for one model."""

    depths: torch.Tensor
    """fp32 [depths], ascending, in tokens from the start of the prompt; at least two."""
    means: torch.Tensor
    """fp32 [layers, parts, depths, kv_heads, head_dim]; K as it would be at position 0."""
    host_depths: npt.NDArray[np.float32] = field(init=False)
    """The depths on the host, where plans are made."""

    def __post_init__(self) -> None:
        depths, means = self.depths, self.means
        object.__setattr__(self, "means", means.contiguous())
        object.__setattr__(self, "host_depths", depths.detach().cpu().float().numpy())
        if (
            depths.ndim != 1
            or len(depths) < 2
            or means.ndim != 5
            or means.shape[1] not in PARTS
            or means.shape[2] != len(depths)
            or not bool((depths.diff() > 0).all())
            or not bool(torch.isfinite(means).all())
        ):
            raise SerialisationError(
                f"depth drift: expected ascending depths and finite means [layers, parts, depths, "
                f"kv_heads, head_dim], got {tuple(depths.shape)} and {tuple(means.shape)}"
            )

    def to(self, device: torch.device | str) -> DepthDrift:
        return DepthDrift(depths=self.depths.to(device), means=self.means.to(device))

    def of_rank(self, *, layers: int, kv_heads: int, rank: int, ranks: int) -> DepthDrift:
        """The part for one of `ranks` workers, which holds `kv_heads` of each layer's heads.

        Raises
        ------
        SerialisationError
            If the table belongs to a model with other layers or heads.
        """
        heads = self.means.shape[3]
        if self.means.shape[0] != layers or kv_heads != max(1, heads // ranks):
            raise SerialisationError(
                f"depth drift: expected {layers} layers and {kv_heads} heads on each of {ranks} "
                f"ranks, got {self.means.shape[0]} layers and {heads} heads"
            )
        # With more ranks than heads, neighbouring ranks hold the same head.
        first = rank * heads // ranks
        means = self.means[:, :, :, first : first + kv_heads]
        return DepthDrift(depths=self.depths, means=means.contiguous())

    def with_still_layers(self, count: int) -> DepthDrift:
        """The same with `count` more layers at the end, which do not drift."""
        if not count:
            return self
        still = torch.zeros_like(self.means[:1]).expand(count, *self.means.shape[1:])
        return DepthDrift(depths=self.depths, means=torch.cat((self.means, still)))

    def at(self, depths: torch.Tensor) -> torch.Tensor:
        """Means at any depths [n], interpolated linearly: [layers, parts, n, ...]."""
        wanted = depths.to(self.depths)
        above = torch.searchsorted(self.depths, wanted).clamp(1, len(self.depths) - 1)
        low, high = self.depths[above - 1], self.depths[above]
        share = ((wanted - low) / (high - low)).clamp(0.0, 1.0)[:, None, None]
        return torch.lerp(self.means[:, :, above - 1], self.means[:, :, above], share)

    def move(
        self, *, source_start: int, target_start: int, tokens: int, rotary: RotaryTable
    ) -> DepthMove | None:
        """The differences for a run of tokens that changes depth; None if there are none."""
        if not tokens or abs(target_start - source_start) <= SAME_DEPTH_TOKENS:
            return None
        offsets = np.arange(tokens)
        return self._move(source_start + offsets, target_start + offsets, offsets, rotary)

    def of_batch(self, batch: MovedTokens, rotary: RotaryTable) -> DepthMove:
        """The differences for tokens that are all shifted."""
        return self._move(
            batch.source_positions, batch.target_positions, batch.span_offsets, rotary
        )

    def places(self, depths: npt.NDArray[np.float32]) -> tuple[SlotArray, npt.NDArray[np.float32]]:
        """Where depths are in the table: the row below each, and the fraction to the next."""
        rows = self.host_depths
        above = np.searchsorted(rows, depths).clip(1, len(rows) - 1)
        low, high = rows[above - 1], rows[above]
        return above - 1, ((depths - low) / (high - low)).clip(0.0, 1.0).astype(np.float32)

    def _move(
        self, source: SlotArray, target: SlotArray, offsets: SlotArray, rotary: RotaryTable
    ) -> DepthMove:
        device = self.means.device
        both = np.stack((step_depths(source, offsets), step_depths(target, offsets)))
        begins = np.diff(both, axis=1, prepend=-1.0).any(axis=0)
        before, after = (torch.from_numpy(depths[begins]).to(device) for depths in both)
        number = np.cumsum(begins) - 1
        away = self.at(after) - self.at(before)
        targets = torch.from_numpy(target).to(device)
        table = rotary if rotary.cos.device == device else rotary.to(device)
        cos, sin = table.differences(torch.zeros_like(targets), targets)
        return DepthMove(
            away=away,
            step=torch.from_numpy(number).to(device),
            cos=cos[:, None],
            sin=sin[:, None],
            rotary=table,
        )

    def to_bytes(self) -> bytes:
        """The table as a safetensors file."""
        from safetensors.torch import save

        tensors = {"depths": self.depths.cpu().contiguous(), "means": self.means.cpu().contiguous()}
        return save(tensors)

    @classmethod
    def from_bytes(cls, data: bytes) -> DepthDrift:
        """Read a table.

        Raises
        ------
        SerialisationError
            If it is not a table.
        """
        # Imported here, so that copying without a table needs only torch and numpy.
        from safetensors import SafetensorError
        from safetensors.torch import load

        try:
            tensors = load(data)
            return cls(depths=tensors["depths"].float(), means=tensors["means"].float())
        except (KeyError, ValueError, SafetensorError) as error:
            raise SerialisationError(f"not a depth-drift table: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DepthMove:
    """One run's differences, ready to be added layer by layer."""

    away: torch.Tensor
    """fp32 [layers, parts, steps, kv_heads, head_dim]; K as at position 0."""
    step: torch.Tensor
    """int64 [tokens]: the step each token belongs to."""
    cos: torch.Tensor
    sin: torch.Tensor
    """[tokens, 1, rotary_dim / 2]: rows from position 0 to each target position."""
    rotary: RotaryTable

    def keys(self, layer: int, keys: torch.Tensor) -> torch.Tensor:
        """A layer's K [tokens, kv_heads, head_dim], already rotated, shifted to its new depth."""
        away = self._spread(layer, 0)
        which = self.rotary.rotating
        turned = rotate(away[..., which], self.cos, self.sin, self.rotary.pairing)
        moved = torch.cat((away[..., : which.start], turned, away[..., which.stop :]), dim=-1)
        return (keys.float() + moved).to(keys.dtype)

    def values(self, layer: int, values: torch.Tensor) -> torch.Tensor:
        """A layer's V [tokens, kv_heads, head_dim] at its new depth."""
        return (values.float() + self._spread(layer, 1)).to(values.dtype)

    def _spread(self, layer: int, part: int) -> torch.Tensor:
        return self.away[layer, part].index_select(0, self.step)


class MovedTokens(Protocol):
    """Tokens with their source and target positions, one entry per token in every array."""

    @property
    def source_positions(self) -> SlotArray:
        """Positions at which K was computed."""
        ...

    @property
    def target_positions(self) -> SlotArray:
        """Positions it moves to."""
        ...

    @property
    def span_offsets(self) -> SlotArray:
        """Offset of each token in its span."""
        ...


def is_shifted(batch: MovedTokens) -> npt.NDArray[np.bool_]:
    """Which tokens moved far enough to be shifted."""
    moved = np.abs(batch.target_positions - batch.source_positions)
    return np.asarray(moved > SAME_DEPTH_TOKENS)


def step_depths(positions: SlotArray, offsets: SlotArray) -> npt.NDArray[np.float32]:
    """The depth whose mean is used for tokens at `positions`: the middle of their step.

    Steps count from the start of a span, even if it is split into pieces.
    """
    middle = positions - offsets % STEP_TOKENS + (STEP_TOKENS - 1) / 2
    return np.asarray(middle, dtype=np.float32)


def table_digest(data: bytes) -> str:
    """The digest by which a certificate names a table."""
    return hashlib.sha256(data).hexdigest()


def read_table(path: Path) -> DepthDrift:
    """Read a table from a file.

    Raises
    ------
    SerialisationError
        If it cannot be read or is not a table.
    """
    try:
        return DepthDrift.from_bytes(path.read_bytes())
    except OSError as error:
        raise SerialisationError(f"{path} cannot be read: {error.strerror or error}") from error
