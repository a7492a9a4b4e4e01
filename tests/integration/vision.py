"""A tokenizer and an image processor for tiny models that also read images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

NAMES = {
    "image_token_id": "<|image_pad|>",
    "video_token_id": "<|video_pad|>",
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
}


def image_tokens(vocabulary: int) -> dict[str, int]:
    """Ids of the tokens that stand for images, as configurations name them: the last ones."""
    return {name: vocabulary - 1 - place for place, name in enumerate(NAMES)}


def save_processor(folder: Path, kind: str, vocabulary: int) -> None:
    """Write what vLLM needs to start such a model, with a word for every token."""
    words = {f"w{number}": number for number in range(vocabulary - len(NAMES))}
    special = {NAMES[name]: number for name, number in image_tokens(vocabulary).items()}
    plain = Tokenizer(models.WordLevel({**words, **special}, unk_token="w3"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain,
        eos_token="w2",
        pad_token="w0",
        additional_special_tokens=list(special),
    )
    newer = kind == "Qwen3VL"
    pixels: dict[str, Any] = {
        "size": {"shortest_edge": 56 * 56, "longest_edge": 112 * 112},
        "patch_size": 16 if newer else 14,
    }
    videos = "Qwen3VLVideoProcessor" if newer else "Qwen2VLVideoProcessor"
    processor = getattr(transformers, f"{kind}Processor")(
        image_processor=transformers.Qwen2VLImageProcessor(**pixels),
        tokenizer=tokenizer,
        video_processor=getattr(transformers, videos)(),
        chat_template="{{ messages }}",
    )
    processor.save_pretrained(folder)
