"""How far an adapter goes in an engine: it loads, only discovers, or does nothing.

An engine that an adapter was not proven with starts all the same. The rule is here, once; each
engine supplies two probes. What `loading` finds means discovery, what `discovery` finds means an
adapter that does nothing, and a probe that fails has found something. SEMBLEND_STRICT_START
refuses instead. Wrong options and settings are the user's to correct and always raise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeVar

from semblend.core.errors import SettingsError
from semblend.core.settings import Settings
from semblend.integration.modes import Mode
from semblend.integration.options import AdapterOptions
from semblend.integration.refusals import Refusal, UnsupportedEngineError

Options = TypeVar("Options", bound=AdapterOptions)
Built = TypeVar("Built")
Probe = Callable[[], Iterable[Refusal | str]]
"""Asks an engine; what it names stands in the way."""


class Reach(IntEnum):
    """What an adapter does at most."""

    NOTHING = 0
    """Every call is answered as if nobody were there."""
    DISCOVERS = 1
    LOADS = 2
    """Whatever its mode says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """How far one adapter goes, and why no further."""

    reach: Reach
    refusals: tuple[Refusal, ...] = ()

    @property
    def does_nothing(self) -> bool:
        """Whether the engine is to run as without us."""
        return self.reach is Reach.NOTHING

    @property
    def objection(self) -> str | None:
        """Why less is done than was asked for, if so; names all of it."""
        return "; ".join(map(str, self.refusals)) or None

    def allowed(self, options: Options) -> Options:
        """The options as far as they may be carried out."""
        if self.reach is Reach.LOADS or not options.mode.loads:
            return options
        return options.model_copy(update={"mode": Mode.DISCOVERY_ONLY})


UNHINDERED = Start(reach=Reach.LOADS)


def start_of(
    options: AdapterOptions, settings: Settings, *, loading: Probe, discovery: Probe
) -> Start:
    """Ask the engine how far an adapter may go.

    Raises
    ------
    SettingsError
        If an option or a setting is wrong.
    UnsupportedEngineError
        With SEMBLEND_STRICT_START, naming everything that was found.
    """
    obstacles = _asked(discovery)
    wants_to_load = options.mode.loads and not settings.discovery_only
    refusals = _asked(loading) if wants_to_load else ()
    found = (*obstacles, *refusals)
    if not found:
        return UNHINDERED
    if settings.strict_start:
        raise UnsupportedEngineError(found)
    return Start(reach=Reach.NOTHING if obstacles else Reach.DISCOVERS, refusals=found)


def build(
    start: Start, settings: Settings, make: Callable[[Start], Built]
) -> tuple[Start, Built | None]:
    """Build what an adapter needs to go so far; where that fails, it does nothing.

    Raises
    ------
    SettingsError
        If an option or a setting is wrong.
    Exception
        Whatever `make` raised, with SEMBLEND_STRICT_START.
    """
    if start.does_nothing:
        return start, None
    try:
        return start, make(start)
    except SettingsError:
        raise
    except Exception as error:
        if settings.strict_start:
            raise
        return Start(reach=Reach.NOTHING, refusals=(*start.refusals, failure(error))), None


def failure(error: Exception) -> Refusal:
    """Something of an engine that is not as an adapter knows it, and raised."""
    return Refusal(feature=f"{type(error).__name__}: {error}")


def _asked(probe: Probe) -> tuple[Refusal, ...]:
    try:
        found = tuple(probe())
    except SettingsError:
        raise
    except Exception as error:
        return (failure(error),)
    return tuple(Refusal(feature=one) if isinstance(one, str) else one for one in found)
