"""Renders messages as prompt text in ChatML, the layout most open models share.

Offline runs need one common layout; live runs leave it to the server's template.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sembench.conversations.messages import ChatMessage, Turn

_TOOLS_HEAD = "You may call one of these tools:"


def render(messages: Sequence[ChatMessage], tools: Sequence[dict[str, Any]] = ()) -> str:
    """The prompt of a request, up to the start of the answer."""
    parts: list[str] = []
    for message in messages:
        text = message.text
        if message.role == "system" and tools:
            listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
            text = f"{text}\n\n{_TOOLS_HEAD}\n{listed}"
        parts.append(f"<|im_start|>{message.role}\n{text}<|im_end|>\n")
    return "".join(parts) + "<|im_start|>assistant\n"


def prompt_of(turn: Turn) -> str:
    return render(turn.messages, turn.tools)
