"""From records to a certificate, or to the reasons there is none."""

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

from semblend.engine.model import LoadedModel
from semblend.planning.certificates import Certificate, release
from semblend.quality.bound import Bound, Verdict, choose, judge
from semblend.quality.curves import Curve
from semblend.quality.figures import Figures, figures_of, noise_floor
from semblend.quality.measure import Record

VALID_DAYS = 365


@dataclass(frozen=True, slots=True, kw_only=True)
class Issue:
    """What was found."""

    figures: tuple[Figures, ...]
    noise: dict[str, float]
    verdicts: tuple[Verdict, ...]
    chosen: Verdict | None
    certificate: Certificate | None


def issue(
    records: Sequence[Record],
    curves: Sequence[Curve],
    *,
    model: LoadedModel,
    bound: Bound,
    data: dict[str, Any],
    measured_on: str,
    now: datetime | None = None,
) -> Issue:
    """Judge the records; a certificate names the cheapest policy inside the bound."""
    now = datetime.now(UTC) if now is None else now
    figures = tuple(figures_of(records))
    noise = noise_floor(records)
    verdicts = tuple(judge(figures, bound, noise_kl=noise["kl_p99"]))
    chosen = choose(verdicts)
    certificate = None
    if chosen is not None:
        certificate = Certificate(
            model=Path(model.name).name,
            fingerprint=model.fingerprint,
            dtype=str(model.kv_shape.dtype).removeprefix("torch."),
            policy=chosen.policy,
            bound=bound.to_dict(),
            figures={
                "chosen": [f.to_dict() for f in figures if f.policy == chosen.policy],
                "naive": [f.to_dict() for f in figures if f.policy == "none"],
                "noise_floor": noise,
                "verdicts": [
                    {
                        "policy": verdict.policy,
                        "price": round(verdict.price, 4),
                        "objections": list(verdict.objections),
                    }
                    for verdict in verdicts
                ],
                "deviation": _deviation(curves),
            },
            data=data,
            versions={
                "semblend": release(),
                "torch": torch.__version__,
                "transformers": _transformers_version(),
                "numpy": np.__version__,
                "python": platform.python_version(),
                "measured_on": measured_on,
            },
            created=now.isoformat(timespec="seconds"),
            expires=(now + timedelta(days=VALID_DAYS)).isoformat(timespec="seconds"),
        ).signed()
    return Issue(
        figures=figures,
        noise=noise,
        verdicts=verdicts,
        chosen=chosen,
        certificate=certificate,
    )


def read_curves(paths: Sequence[Path]) -> list[Curve]:
    """Deviation curves from files of JSON lines."""
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
    """Mean deviation a layer, by workload and policy."""
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
