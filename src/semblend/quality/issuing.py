"""From records to a certificate, or to the reasons for refusing one."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch

from semblend import __version__
from semblend.engine.model import LoadedModel
from semblend.planning.certificates import MEASUREMENT_VERSION, Certificate, plugin_entries
from semblend.quality.bound import Bound, JudgedPolicy, choose, judge
from semblend.quality.curves import Curve
from semblend.quality.figures import Figures, figures_of, noise_floor
from semblend.quality.measure import Record
from semblend.quality.redteam.finds import Findings

VALID_DAYS = 365


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificatePart:
    """One of the two measurements: for choosing a policy, or for confirming it."""

    records: tuple[Record, ...]
    figures: tuple[Figures, ...]
    noise: dict[str, float]
    judged_policies: tuple[JudgedPolicy, ...]
    """Verdicts on every policy measured on all workloads, cheapest first."""

    def judged_policy(self, policy: str) -> JudgedPolicy | None:
        """This measurement's verdict on a policy."""
        return next((v for v in self.judged_policies if v.policy == policy), None)


def part_of(records: Sequence[Record], bound: Bound) -> CertificatePart:
    """Judge some records."""
    figures = tuple(figures_of(records))
    noise = noise_floor(records)
    return CertificatePart(
        records=tuple(records),
        figures=figures,
        noise=noise,
        judged_policies=tuple(judge(figures, bound, noise_kl=noise["kl_p99"])),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Issue:
    """The result of a certification."""

    choice: CertificatePart
    chosen: JudgedPolicy | None
    """The cheapest policy within the bound on the choice documents."""
    confirmation: CertificatePart | None
    confirmed: JudgedPolicy | None
    """Its verdict on the confirmation documents."""
    redteam: Findings | None
    """The red team's findings on it; None if it was not attacked."""
    against: tuple[str, ...]
    """Reasons against it after confirmation and red team."""
    certificate: Certificate | None

    @property
    def refusal(self) -> str:
        """Why there is no certificate; empty if there is one."""
        if self.chosen is None:
            return "no policy keeps the bound"
        if self.confirmed is None:
            return f"{self.chosen.policy} was not measured on the confirmation documents"
        return "; ".join(self.against)


def issue(
    choice: CertificatePart,
    confirmation: CertificatePart | None,
    curves: Sequence[Curve],
    *,
    model: LoadedModel,
    bound: Bound,
    data: dict[str, Any],
    measured_on: str,
    redteam: Findings | None = None,
    now: datetime | None = None,
) -> Issue:
    """Certify the policy that `choice` selects, if `confirmation` and the red team agree.

    There is only one try. If the next policy got another, the confirmation documents would also be
    choosing.
    """
    chosen = choose(choice.judged_policies)
    confirmed = None
    if chosen is not None and confirmation is not None:
        confirmed = confirmation.judged_policy(chosen.policy)
    certificate = None
    against: tuple[str, ...] = ()
    if confirmed is not None:
        against = (*confirmed.objections, *bound.redteam_objections(redteam))
    if confirmation is not None and confirmed is not None and not against:
        certificate = _certificate(
            confirmed.policy,
            choice,
            confirmation,
            curves,
            model=model,
            bound=bound,
            data=data,
            measured_on=measured_on,
            redteam=redteam,
            now=datetime.now(UTC) if now is None else now,
        )
    return Issue(
        choice=choice,
        chosen=chosen,
        confirmation=confirmation,
        confirmed=confirmed,
        redteam=redteam,
        against=against,
        certificate=certificate,
    )


def _certificate(
    policy: str,
    choice: CertificatePart,
    confirmation: CertificatePart,
    curves: Sequence[Curve],
    *,
    model: LoadedModel,
    bound: Bound,
    data: dict[str, Any],
    measured_on: str,
    redteam: Findings | None,
    now: datetime,
) -> Certificate:
    figures = confirmation.figures
    others = {judged.policy for judged in confirmation.judged_policies} - {policy, "none"}
    return Certificate(
        model=Path(model.name).name,
        fingerprint=model.fingerprint,
        dtype=str(model.kv_shape.dtype).removeprefix("torch."),
        policy=policy,
        bound=bound.to_dict(),
        figures={
            "chosen": [f.to_dict() for f in figures if f.policy == policy],
            "naive": [f.to_dict() for f in figures if f.policy == "none"],
            "others": [f.to_dict() for f in figures if f.policy in others],
            "noise_floor": confirmation.noise,
            "choice": _plain(choice.judged_policies),
            "confirmation": _plain(confirmation.judged_policies),
            "deviation": _deviation(curves),
            "redteam": None if redteam is None else redteam.to_dict(),
        },
        data={**data, "architecture": model.architecture},
        versions={
            "semblend": __version__,
            "measurement": str(MEASUREMENT_VERSION),
            **plugin_entries(policy),
            "torch": torch.__version__,
            "transformers": _transformers_version(),
            "numpy": np.__version__,
            "python": platform.python_version(),
            "measured_on": measured_on,
        },
        created=now.isoformat(timespec="seconds"),
        expires=(now + timedelta(days=VALID_DAYS)).isoformat(timespec="seconds"),
    ).hashed()


def _plain(judged_policies: Sequence[JudgedPolicy]) -> list[dict[str, Any]]:
    return [
        {
            "policy": judged.policy,
            "price": round(judged.price, 4),
            "objections": list(judged.objections),
        }
        for judged in judged_policies
    ]


def read_curves(paths: Sequence[Path]) -> list[Curve]:
    """Read deviation curves from JSON Lines files."""
    found: list[Curve] = []
    for path in paths:
        for line in path.read_text(encoding="utf-8").splitlines():
            data = json.loads(line)
            found.append(
                Curve(
                    **{
                        **data,
                        "layers": tuple(data["layers"]),
                        "positions": tuple(data["positions"]),
                    }
                )
            )
    return found


def _deviation(curves: Sequence[Curve]) -> dict[str, list[float]]:
    """Mean deviation per layer, by workload and policy."""
    groups: dict[str, list[Curve]] = {}
    for curve in curves:
        groups.setdefault(f"{curve.workload}, {curve.policy}", []).append(curve)
    return {
        name: [round(float(v), 4) for v in np.mean([curve.layers for curve in mine], axis=0)]
        for name, mine in groups.items()
    }


def _transformers_version() -> str:
    import transformers

    return str(transformers.__version__)
