"""Audits a manifest: what it contains, and whether each item does what its transform says."""

from __future__ import annotations

from array import array
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from sembench.errors import ManifestError, TransformError
from sembench.ids import file_sha256, item_id
from sembench.manifests.figures import tokenise
from sembench.manifests.files import count_items, read_manifest
from sembench.metrics import rate
from sembench.model import ManifestItem
from sembench.progress import track
from sembench.tokenizers import Tokenizer
from sembench.transforms import TRANSFORMS

MOST_VIOLATIONS = 100
"""How many violations to list; the count covers all."""


def audit(path: Path, *, tokenizer: Tokenizer, block_size: int) -> dict[str, Any]:
    """Everything to know about a manifest before trusting a figure from it."""
    pools: dict[str, _Pool] = {}
    datasets: Counter[str] = Counter()
    unchecked: Counter[str] = Counter()
    violations: list[dict[str, str]] = []
    violation_count = 0
    for item in track(read_manifest(path), description="auditing", total=count_items(path)):
        datasets[item.dataset] += 1
        tokens = tokenise(item, tokenizer)
        pools.setdefault(item.transform, _Pool()).add(
            item, len(tokens.recipient), int(tokens.exact_mask(block_size).sum()), block_size
        )
        problem = _violation(item)
        if problem is None:
            unchecked[item.transform] += item.transform not in TRANSFORMS
        else:
            violation_count += 1
            if len(violations) < MOST_VIOLATIONS:
                violations.append({"item_id": item.item_id, "problem": problem})
    if not pools:
        raise ManifestError(f"{path}: has no items")
    return {
        "manifest": str(path),
        "sha256": file_sha256(path),
        "items": sum(datasets.values()),
        "tokenizer": tokenizer.name,
        "block_size": block_size,
        "by_dataset": dict(sorted(datasets.items())),
        "by_transform": {name: pool.to_dict() for name, pool in sorted(pools.items())},
        "unchecked_transforms": {name: n for name, n in sorted(unchecked.items()) if n},
        "violation_count": violation_count,
        "violations": violations,
    }


def _violation(item: ManifestItem) -> str | None:
    transform = TRANSFORMS.get(item.transform)
    if transform is None:
        return None
    if item.item_id != item_id(item.dataset, item.source_id, item.transform):
        return "item_id is not the id of its dataset, source_id and transform"
    try:
        transform.check(item)
    except TransformError as error:
        return str(error)
    return None


class _Pool:
    def __init__(self) -> None:
        self.items = self.negative = self.answered = self.donors = self.blocks = self.exact = 0
        self.tokens = array("q")

    def add(self, item: ManifestItem, tokens: int, exact_blocks: int, block_size: int) -> None:
        self.items += 1
        self.negative += item.negative_control
        self.answered += bool(item.answers)
        self.donors += len(item.donor_prompts)
        self.tokens.append(tokens)
        self.blocks += tokens // block_size
        self.exact += exact_blocks

    def to_dict(self) -> dict[str, Any]:
        tokens = np.asarray(self.tokens)
        return {
            "items": self.items,
            "negative_controls": self.negative,
            "with_answers": self.answered,
            "donors": self.donors,
            "prompt_tokens_min": int(tokens.min()),
            "prompt_tokens_p50": float(np.median(tokens)),
            "prompt_tokens_max": int(tokens.max()),
            "exact_block_hit_rate": rate(self.exact, self.blocks),
        }
