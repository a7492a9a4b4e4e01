"""Manifest items: one recipient prompt each, and the donors served before it.

The public format is ``sembench.manifest.v1``: one JSON object per line, keys sorted,
text not escaped, so that equal items have equal bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from sembench.errors import ManifestError
from sembench.json_text import parse_json

BENCHMARK_VERSION = "sembench.manifest.v1"
_VERSION_FAMILY = "sembench.manifest."


@dataclass(frozen=True, slots=True, kw_only=True)
class DonorPrompt:
    """A prompt served before the recipient arrives; its K/V may be kept."""

    donor_id: str
    text: str
    label: str
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {
            "donor_id": self.donor_id,
            "text": self.text,
            "label": self.label,
            "metadata": dict(self.metadata),
        }

    @classmethod
    def from_dict(cls, data: Any, *, where: str) -> Self:
        """Read a donor; `where` prefixes the field named in an error."""
        if not isinstance(data, Mapping):
            raise ManifestError(f"{where}: expected an object, got {_kind(data)}")
        return cls(
            donor_id=_text(data, "donor_id", where, non_empty=True),
            text=_text(data, "text", where),
            label=_text(data, "label", where, default=""),
            metadata=_mapping(data, "metadata", where),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestItem:
    """One case: serve the donors, then the recipient, and see what is reused.

    A negative control's donors share nothing worth reusing with its recipient, so any
    reuse a system claims there is a false claim.
    """

    item_id: str
    dataset: str
    source_id: str
    transform: str
    donor_prompts: tuple[DonorPrompt, ...]
    recipient_prompt: str
    input: str = ""
    answers: tuple[str, ...] = ()
    negative_control: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict)
    benchmark_version: str = BENCHMARK_VERSION

    def to_dict(self) -> dict[str, Any]:
        return {
            "item_id": self.item_id,
            "dataset": self.dataset,
            "source_id": self.source_id,
            "transform": self.transform,
            "donor_prompts": [donor.to_dict() for donor in self.donor_prompts],
            "recipient_prompt": self.recipient_prompt,
            "input": self.input,
            "answers": list(self.answers),
            "negative_control": self.negative_control,
            "metadata": dict(self.metadata),
            "benchmark_version": self.benchmark_version,
        }

    def to_line(self) -> str:
        """The item as one line of a manifest, newline included."""
        return json.dumps(self.to_dict(), sort_keys=True, ensure_ascii=False) + "\n"

    @classmethod
    def from_dict(cls, data: Any, *, where: str = "item") -> Self:
        """Read an item in the public format.

        Raises
        ------
        ManifestError
            Naming the field (after `where`) and what is expected there.
        """
        if not isinstance(data, Mapping):
            raise ManifestError(f"{where}: expected an object, got {_kind(data)}")
        version = _text(data, "benchmark_version", where, default=BENCHMARK_VERSION)
        if version.startswith(_VERSION_FAMILY) and version != BENCHMARK_VERSION:
            raise ManifestError(
                f"{where}.benchmark_version: {version!r} is not {BENCHMARK_VERSION!r}, "
                f"the version this program reads"
            )
        donors = _list(data, "donor_prompts", where, required=True)
        item = cls(
            item_id=_text(data, "item_id", where, non_empty=True),
            dataset=_text(data, "dataset", where, non_empty=True),
            source_id=_text(data, "source_id", where),
            transform=_text(data, "transform", where, non_empty=True),
            donor_prompts=tuple(
                DonorPrompt.from_dict(donor, where=f"{where}.donor_prompts[{index}]")
                for index, donor in enumerate(donors)
            ),
            recipient_prompt=_text(data, "recipient_prompt", where, non_empty=True),
            input=_text(data, "input", where, default=""),
            answers=tuple(_strings(data, "answers", where)),
            negative_control=_flag(data, "negative_control", where),
            metadata=_mapping(data, "metadata", where),
            benchmark_version=version,
        )
        donor_ids = [donor.donor_id for donor in item.donor_prompts]
        if len(set(donor_ids)) != len(donor_ids):
            raise ManifestError(f"{where}.donor_prompts: donor_id is not unique within the item")
        return item

    @classmethod
    def from_line(cls, line: str, *, where: str = "item") -> Self:
        """Read one line of a manifest."""
        try:
            data = parse_json(line)
        except ValueError as error:
            raise ManifestError(f"{where}: not JSON ({error})") from error
        return cls.from_dict(data, where=where)


def is_text(value: str) -> bool:
    """Whether a string can be written as UTF-8; JSON escapes can encode strings that cannot."""
    if value.isascii():
        return True
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _kind(value: Any) -> str:
    return {dict: "an object", list: "a list", str: "a string", type(None): "null"}.get(
        type(value), f"{value!r}"
    )


def _text(
    data: Mapping[str, Any],
    key: str,
    where: str,
    *,
    default: str | None = None,
    non_empty: bool = False,
) -> str:
    value = data.get(key, default)
    if not isinstance(value, str):
        problem = "is missing" if key not in data else f"expected a string, got {_kind(value)}"
        raise ManifestError(f"{where}.{key}: {problem}")
    if not is_text(value):
        raise ManifestError(f"{where}.{key}: has half a surrogate pair, which is no character")
    if non_empty and not value:
        raise ManifestError(f"{where}.{key}: must not be empty")
    return value


def _flag(data: Mapping[str, Any], key: str, where: str) -> bool:
    value = data.get(key, False)
    if not isinstance(value, bool):
        raise ManifestError(f"{where}.{key}: expected true or false, got {_kind(value)}")
    return value


def _list(data: Mapping[str, Any], key: str, where: str, *, required: bool = False) -> list[Any]:
    if key not in data and not required:
        return []
    value = data.get(key)
    if not isinstance(value, list):
        problem = "is missing" if key not in data else f"expected a list, got {_kind(value)}"
        raise ManifestError(f"{where}.{key}: {problem}")
    return value


def _strings(data: Mapping[str, Any], key: str, where: str) -> list[str]:
    values = _list(data, key, where)
    for index, value in enumerate(values):
        if not isinstance(value, str):
            raise ManifestError(f"{where}.{key}[{index}]: expected a string, got {_kind(value)}")
    return values


def _mapping(data: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
    value = data.get(key, {})
    if not isinstance(value, dict):
        raise ManifestError(f"{where}.{key}: expected an object, got {_kind(value)}")
    return value
