"""The inputs of a build, as a value: same spec and data, same bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from sembench.errors import UsageError
from sembench.json_text import parse_json
from sembench.tokenizers.stable_regex import STABLE_REGEX


class RecordChoice(StrEnum):
    """Which records of a dataset to take if there are more than needed."""

    FIRST = "first"
    """The first ones, in source order."""
    SEEDED = "seeded"
    """A sample determined by the seed and the record ids, in source order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildSpec:
    """Everything a build depends on except the source's data."""

    name: str
    profile: str
    datasets: tuple[str, ...] = ()
    """Empty: all of the profile."""
    transforms: tuple[str, ...] = ()
    """Empty: all."""
    max_items_per_dataset: int | None = None
    """Records per dataset; each yields one item per transform."""
    max_segments: int = 4
    min_segment_chars: int = 400
    hf_revision: str | None = None
    tokenizer: str = STABLE_REGEX
    """Used to count frozen figures; the manifest itself is text."""
    seed: int = 0
    sample: RecordChoice = RecordChoice.FIRST

    def __post_init__(self) -> None:
        for name, least in (("max_items_per_dataset", 1), ("max_segments", 2)):
            value = getattr(self, name)
            if value is not None and value < least:
                flag = "--" + name.replace("_", "-")
                raise UsageError(f"{flag}: expected at least {least}, got {value}")
        if self.min_segment_chars < 1:
            raise UsageError(
                f"--min-segment-chars: expected at least 1, got {self.min_segment_chars}"
            )

    def to_dict(self) -> dict[str, Any]:
        """The spec in the public format of checksum files."""
        return {
            **asdict(self),
            "datasets": list(self.datasets),
            "transforms": list(self.transforms),
            "sample": self.sample.value,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], *, where: str) -> Self:
        """Read a spec; `where` prefixes the field named in an error."""
        names = {f.name for f in fields(cls)}
        unknown = sorted(set(data) - names)
        if unknown:
            raise UsageError(
                f"{where}: unknown field {unknown[0]!r}; known are {', '.join(sorted(names))}"
            )
        values = dict(data)
        for name in ("name", "profile"):
            if not isinstance(values.get(name), str) or not values[name]:
                raise UsageError(f"{where}.{name}: expected a non-empty string")
        for name in ("datasets", "transforms"):
            listed = values.get(name) or []
            if not isinstance(listed, list) or not all(isinstance(x, str) for x in listed):
                raise UsageError(f"{where}.{name}: expected a list of strings")
            values[name] = tuple(listed)
        for name in ("max_items_per_dataset", "max_segments", "min_segment_chars", "seed"):
            value = values.get(name, 0)
            if name != "max_items_per_dataset" and value is None:
                raise UsageError(f"{where}.{name}: expected an integer, got null")
            if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
                raise UsageError(f"{where}.{name}: expected an integer, got {value!r}")
        if "sample" in values:
            try:
                values["sample"] = RecordChoice(values["sample"])
            except ValueError as error:
                raise UsageError(
                    f"{where}.sample: expected one of {', '.join(RecordChoice)}"
                ) from error
        values["tokenizer"] = values.get("tokenizer") or STABLE_REGEX
        return cls(**values)


_ENTERPRISE = (
    "instruction_variant",
    "same_evidence_new_task",
    "rag_reorder",
    "multi_donor_composite",
    "fuzzy_edit",
    "leading_evidence_new_task",
    "negative_control",
)

SPECS: dict[str, BuildSpec] = {
    spec.name: spec
    for spec in (
        BuildSpec(name="fixture", profile="fixture"),
        BuildSpec(name="synthetic-v1", profile="synthetic-v1", max_items_per_dataset=25),
        BuildSpec(
            name="longbench-v1-enterprise-replay",
            profile="longbench-v1",
            datasets=(
                "qasper",
                "multifieldqa_en",
                "hotpotqa",
                "2wikimqa",
                "musique",
                "gov_report",
                "qmsum",
                "multi_news",
                "lcc",
                "repobench-p",
            ),
            transforms=_ENTERPRISE,
            max_items_per_dataset=10,
        ),
        BuildSpec(
            name="longbench-v2-replay",
            profile="longbench-v2",
            transforms=_ENTERPRISE,
            max_items_per_dataset=50,
        ),
    )
}
"""The built-in specs by name."""


def load_spec(name_or_path: str) -> BuildSpec:
    """Load a spec by name, or from a JSON file with its fields.

    Raises
    ------
    UsageError
        If there is neither; the message lists the names.
    """
    if name_or_path in SPECS:
        return SPECS[name_or_path]
    path = Path(name_or_path)
    if path.suffix != ".json":
        raise UsageError(
            f"--spec: {name_or_path!r} is neither one of {', '.join(SPECS)} nor a .json file"
        )
    try:
        data = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"--spec: {path} cannot be read ({error})") from error
    if not isinstance(data, dict):
        raise UsageError(f"--spec: {path}: expected an object")
    return BuildSpec.from_dict({"name": path.stem, **data}, where=str(path))
