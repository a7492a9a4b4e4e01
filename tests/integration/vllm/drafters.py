"""Drafters for the tiny model "even", among them an EAGLE head that drafts what it will say.

The head is the model's one layer over the embeddings alone, so it knows all but the first token.
"""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.integration.models import folder_of

DRAFTED = 3
"""Tokens drafted at a time."""


def ngram() -> dict[str, Any]:
    """Drafts from the prompt's own words."""
    return {
        "method": "ngram",
        "num_speculative_tokens": DRAFTED,
        "prompt_lookup_max": 3,
        "prompt_lookup_min": 1,
    }


def eagle() -> dict[str, Any]:
    """Drafts from the head."""
    return {"method": "eagle", "model": eagle_head(), "num_speculative_tokens": DRAFTED}


@cache
def eagle_head() -> str:
    """The head's folder."""
    model = Path(folder_of("even"))
    folder = Path(tempfile.mkdtemp(prefix="semblend-eagle-"))
    config = json.loads((model / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config))
    head = {
        name.removeprefix("model."): weight.clone()
        for name, weight in load_file(model / "model.safetensors").items()
        if name.startswith(("model.layers.0.", "model.embed_tokens."))
        and "input_layernorm" not in name
    }
    width = config["hidden_size"]
    # The embedding passes, the model's hidden state does not.
    head["fc.weight"] = torch.cat((torch.eye(width), torch.zeros(width, width)), dim=1)
    save_file(head, folder / "model.safetensors", metadata={"format": "pt"})
    return str(folder)
