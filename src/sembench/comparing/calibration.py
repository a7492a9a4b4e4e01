"""The noise floor: how much two cold runs of the same prompt differ on this engine.

Warm-against-cold differences are judged relative to it: an engine whose own reruns
agree only to 0.88 ROUGE-L is not at fault for 0.87.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from sembench import quality, statistics
from sembench.errors import ResultError
from sembench.json_text import parse_json
from sembench.live.reply import Reply
from sembench.live.reply_rows import mean_kl

CALIBRATION_VERSION = "sembench.calibration.v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The part of a calibration file that gates need."""

    rouge_mean: float
    rouge_low: float
    rouge_high: float
    pairs: int

    @classmethod
    def from_dict(cls, data: Any, *, where: str) -> Self:
        """Read a calibration.

        Raises
        ------
        ResultError
            Naming the field and what is expected there.
        """
        if not isinstance(data, Mapping) or data.get("calibration_version") != CALIBRATION_VERSION:
            raise ResultError(f"{where}: not a calibration of version {CALIBRATION_VERSION!r}")
        rouge = data.get("rouge_l")
        if not isinstance(rouge, Mapping):
            raise ResultError(f"{where}.rouge_l: expected an object with value, lo, hi and n")
        numbers = {name: rouge.get(name) for name in ("value", "lo", "hi", "n")}
        for name, value in numbers.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ResultError(f"{where}.rouge_l.{name}: expected a number, got {value!r}")
        return cls(
            rouge_mean=float(rouge["value"]),
            rouge_low=float(rouge["lo"]),
            rouge_high=float(rouge["hi"]),
            pairs=int(rouge["n"]),
        )


def read_calibration(path: Path) -> Calibration:
    try:
        data = parse_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ResultError(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise ResultError(f"{path}: not JSON ({error})") from error
    return Calibration.from_dict(data, where=str(path))


def summarise_reruns(pairs: Sequence[tuple[Reply, Reply]]) -> dict[str, Any]:
    """Compute the floor from pairs of cold replies to one prompt; failed pairs are only counted."""
    good = [(first, second) for first, second in pairs if first.ok and second.ok]
    rouges = [quality.rouge_l(second.text, first.text) for first, second in good]
    scores = [quality.token_f1(second.text, [first.text]) for first, second in good]
    divergences = [mean_kl(first, second) for first, second in good]
    ratios = statistics.paired_ratios(
        [first.ttft_ms or 0.0 for first, _ in good], [second.ttft_ms or 0.0 for _, second in good]
    )
    return {
        "pairs": len(good),
        "failed_pairs": len(pairs) - len(good),
        "identical_answers": sum(first.text == second.text for first, second in good),
        "rouge_l": _interval(rouges),
        "token_f1": _interval([score for score in scores if score is not None]),
        "kl": _interval([value for value in divergences if value is not None]),
        "ttft_ratio": None
        if (interval := statistics.bootstrap_median(ratios)) is None
        else interval.to_dict(),
    }


def _interval(values: Sequence[float]) -> dict[str, Any] | None:
    interval = statistics.bootstrap_mean(values)
    return None if interval is None else interval.to_dict()
