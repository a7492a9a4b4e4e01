"""What adapters refuse in engines they were not proven with.

Each entry is a feature that changes what a span's K/V means to segmented prefill, or that
nobody has tested with it. Refusing costs a cold prefill; not refusing costs wrong answers.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from semblend.core.architectures import EngineName, Trait, rows_of
from semblend.core.errors import UnsupportedModelError, UnsupportedRotaryError
from semblend.integration.probing import UNPROBED

if TYPE_CHECKING:
    from semblend.integration.options import VariableOptions

Features: TypeAlias = tuple[tuple[str, Callable[[Any], Any]], ...]
"""Feature names, and how to tell from an engine's configuration that one is in use."""

Traits: TypeAlias = tuple[tuple[Trait, Callable[[Any], Any]], ...]
"""What a model may have, and how to tell from an engine's configuration that it does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """One reason not to load donor K/V in this engine."""

    feature: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.feature} ({self.remedy})" if self.remedy else self.feature


class UnsupportedEngineError(UnsupportedModelError):
    """The engine's setup was not proven with this adapter; the message names everything."""

    def __init__(self, refusals: Iterable[Refusal]) -> None:
        self.refusals = tuple(refusals)
        listed = "; ".join(map(str, self.refusals))
        super().__init__(
            f"SemBlend cannot load K/V in this engine: {listed}. "
            f"Mode discovery_only works with most of these."
        )


def architecture_names(hf_config: Any) -> list[str]:
    """The architectures a model's configuration states."""
    return list(getattr(hf_config, "architectures", None) or [])


def architecture_refusals(hf_config: Any, *, engine: EngineName, unverified: bool) -> list[Refusal]:
    """Empty for an architecture this engine was run with, or if any may be tried."""
    names = architecture_names(hf_config)
    obstacles = [row for row in rows_of(names) if row.obstacle]
    if obstacles:
        return [
            Refusal(
                feature=f"architecture {row.name}",
                remedy=f"{row.obstacle}: docs/lab/what-attention-spans-need.md",
            )
            for row in obstacles
        ]
    if unverified or any(rows_of(names, engine)):
        return []
    return [
        Refusal(
            feature=f"architecture {', '.join(names) or 'unknown'}",
            remedy="not tested; unverified_architectures=true tries it",
        )
    ]


def trait_refusals(traits: Traits, config: Any, *, taken: Container[Trait]) -> list[Refusal]:
    """One refusal per trait that a configuration has and its architecture was not run with."""
    return refused_features(
        tuple((trait.value, has) for trait, has in traits if trait not in taken), config
    )


def refused_features(features: Features, config: Any) -> list[Refusal]:
    """One refusal per feature in use, in the order of the list."""
    used = dict.fromkeys(name for name, in_use in features if in_use(config))
    return [Refusal(feature=name) for name in used]


def stated(name: str) -> Callable[[Any], Any]:
    """The value of an engine argument; None if this version has no such argument."""
    return lambda arguments: getattr(arguments, name, None)


def more_than_one(name: str) -> Callable[[Any], bool]:
    """Whether a number of ranks, beams or the like is above one."""
    return lambda arguments: int(getattr(arguments, name, 1) or 1) > 1


def policy_refusals(options: VariableOptions, can_run: Callable[[str], bool]) -> list[Refusal]:
    """Empty for a recompute policy that gets the probe it needs.

    Asked where no certificate names one: a certificate's is looked at with it.
    """
    spec = options.settings().recompute_policy
    if not options.mode.uncertified or can_run(spec):
        return []
    return [Refusal(feature=f"recompute policy {spec}", remedy=f"it {UNPROBED}")]


def rotary_refusals(
    text_config: Any,
    *,
    by_layer: bool = False,
    text_positions: bool = False,
    fixed_length: bool = False,
) -> list[Refusal]:
    """Empty for rotary positions whose K can be moved.

    Parameters
    ----------
    by_layer
        Whether the engine moves each kind of layer, and rows of latents, in its own way.
    text_positions
        Whether requests with other positions than text's are left alone.
    fixed_length
        Whether the engine's frequencies are the same for every length of a prompt.
    """
    from semblend.kv.rotary_config import ConfigReader, refuse_unmovable
    from semblend.kv.rotary_spec import RotarySpec

    try:
        reader = ConfigReader.of(text_config)
        if fixed_length and reader.by_length:
            refuse_unmovable(reader, text_positions=text_positions, fixed_length=True)
        elif by_layer:
            RotarySpec.by_layer_type(text_config, text_positions=text_positions)
        else:
            RotarySpec.from_config(text_config, text_positions=text_positions)
    except UnsupportedRotaryError as error:
        return [Refusal(feature=f"rotary positions: {error}")]
    return []
