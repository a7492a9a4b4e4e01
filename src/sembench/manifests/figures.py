"""The exact-block figures of a manifest, on which every engine and machine must agree."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sembench.blocks import BoolArray, TokenArray, exact_block_mask
from sembench.manifests.files import read_manifest
from sembench.metrics import rate
from sembench.model import ManifestItem
from sembench.tokenizers import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenisedItem:
    """An item's prompts as token ids."""

    item: ManifestItem
    recipient: TokenArray
    donors: dict[str, TokenArray]

    def exact_mask(self, block_size: int) -> BoolArray:
        """Mark the recipient's full blocks that a donor also has as a full block."""
        return exact_block_mask(self.recipient, self.donors.values(), block_size)


def tokenise(item: ManifestItem, tokenizer: Tokenizer) -> TokenisedItem:
    return TokenisedItem(
        item=item,
        recipient=tokenizer.encode(item.recipient_prompt),
        donors={donor.donor_id: tokenizer.encode(donor.text) for donor in item.donor_prompts},
    )


def exact_figures(path: Path, *, tokenizer: Tokenizer, block_size: int) -> dict[str, Any]:
    """Count the blocks of all recipients and those an exact cache covers."""
    total = exact = 0
    for item in read_manifest(path):
        mask = tokenise(item, tokenizer).exact_mask(block_size)
        total += len(mask)
        exact += int(mask.sum())
    return {
        "block_size": block_size,
        "tokenizer": tokenizer.name,
        "total_blocks": total,
        "exact_blocks": exact,
        "exact_block_hit_rate": rate(exact, total),
    }
