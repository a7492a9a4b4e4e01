"""Which mode really runs in an engine, why, and what to do next; logged once, at start."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from semblend.core.settings import Settings
from semblend.integration.modes import Mode
from semblend.integration.options import AdapterOptions
from semblend.planning.certificates import Standing

_FOUND = "Reusable text is found and counted (source=reusable), but all of it is computed"

_DOCTOR = (
    "`semblend doctor` says what is refused and why; SEMBLEND_STRICT_START=1 does not start instead"
)

_EXACT = "Identical prefixes are loaded; they are exact and need no certificate"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningMode:
    """A requested mode and what became of it."""

    asked: str
    runs: str
    why: str
    does: str
    next_step: str
    """Empty if nothing is left to do."""

    @property
    def level(self) -> int:
        """The log level: a warning if someone chose a mode and it does not run."""
        return logging.INFO if self.asked == self.runs else logging.WARNING

    def __str__(self) -> str:
        """One line for the log."""
        line = f"SemBlend runs as {self.runs}: {self.why}. {self.does}."
        return f"{line} Next: {self.next_step}." if self.next_step else line

    def say(self, logger: logging.Logger, *, unheeded: str = "") -> None:
        """Log it, and what was set that does nothing."""
        logger.log(self.level, "%s", self)
        if unheeded:
            logger.warning("SemBlend: %s", unheeded)

    @classmethod
    def nothing(cls, mode: Mode, why: str) -> RunningMode:
        """An adapter that an engine was not found fit for."""
        does = "Every prompt is computed as without SemBlend"
        return cls(asked=mode.value, runs="off", why=why, does=does, next_step=_DOCTOR)

    @classmethod
    def of(
        cls,
        options: AdapterOptions,
        *,
        settings: Settings,
        standing: Standing,
        model: str,
        objection: str | None = None,
        prefixes: bool = False,
    ) -> RunningMode:
        """Determine the mode.

        Parameters
        ----------
        options
            What was asked for, before an objection cut it.
        objection
            Why this engine loads nothing in any mode, if so.
        prefixes
            Whether the engine loads identical prefixes in every mode that loads.
        """
        mode, asked = options.mode, options.mode.value

        def discovery(why: str, next_step: str) -> RunningMode:
            runs = "discovery_only"
            return cls(asked=asked, runs=runs, why=why, does=_FOUND, next_step=next_step)

        if not settings.enabled:
            nothing = "Nothing is looked up"
            why, step = "SEMBLEND_ENABLED is 0", "set SEMBLEND_ENABLED=1"
            return cls(asked=asked, runs="off", why=why, does=nothing, next_step=step)
        if not mode.loads:
            why = (
                "this mode was chosen"
                if "mode" in options.model_fields_set
                else "no mode was given"
            )
            return discovery(why, _certify(model))
        if settings.discovery_only:
            return discovery("SEMBLEND_DISCOVERY_ONLY is set", "unset SEMBLEND_DISCOVERY_ONLY")
        if objection is not None:
            return discovery(objection, _DOCTOR)
        exact = cls(asked=asked, runs="exact_prefix", why="asked for", does=_EXACT, next_step="")
        if mode.value == exact.runs:
            return exact
        if mode.uncertified:
            why = "an experiment without a certificate, as every response says"
            step = f"run `semblend certify --model {model}`, then use mode segmented"
            does = "Reusable text is loaded"
            return cls(asked=asked, runs=asked, why=why, does=does, next_step=step)
        if standing.certificate is None:
            why = f"no quality certificate holds ({standing.detail})"
            if prefixes:
                return replace(exact, why=why, next_step=_certify(model))
            return discovery(why, _certify(model))
        certificate = standing.certificate
        why = f"{model} is certified with {certificate.policy} until {certificate.expires}"
        return cls(asked=asked, runs=asked, why=why, does="Reusable text is loaded", next_step="")


def _certify(model: str) -> str:
    return (
        f"run `semblend certify --model {model}`, then use mode segmented; to try it without a "
        "certificate, use mode segmented_experimental"
    )
