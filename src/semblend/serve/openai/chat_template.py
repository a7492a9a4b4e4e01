"""Renders a chat as prompt text with the model's own template.

A template without support for tools would silently drop them. For such a template the
tools go to the end of the system message, and calls into the text of their message.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from semblend.serve.api_errors import ApiError
from semblend.serve.openai.chat_messages import Message, Tool, ToolCall

_OURS = frozenset(
    {
        "conversation",
        "messages",
        "tools",
        "documents",
        "chat_template",
        "add_generation_prompt",
        "continue_final_message",
        "tokenize",
        "return_tensors",
        "return_dict",
        "return_assistant_tokens_mask",
        "padding",
        "truncation",
        "max_length",
        "tokenizer_kwargs",
    }
)
"""Arguments that change what is rendered; a request may not set them."""

_TOOLS_HEAD = (
    "You may call one of these tools. To call one, answer with a JSON object that has its "
    '"name" and "arguments", between <tool_call> and </tool_call>:'
)


class ChatTemplate:
    """Turns messages into text."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        template = str(getattr(tokenizer, "chat_template", None) or "")
        self.exists = bool(template)
        self._takes_tools = "tools" in template
        self._takes_calls = "tool_calls" in template

    def render(
        self, messages: Sequence[Message], tools: Sequence[Tool], options: Mapping[str, Any]
    ) -> str:
        """The prompt, up to the start of the answer.

        Raises
        ------
        ApiError
            If the template refuses the messages or an option may not be set.
        """
        if taken := sorted(_OURS & options.keys()):
            raise ApiError(
                400,
                f"chat_template_kwargs.{taken[0]}: set by the server; remove it",
                param=f"chat_template_kwargs.{taken[0]}",
                code="invalid_value",
            )
        turns = [self._turn(message) for message in messages]
        listed = [tool.for_template() for tool in tools]
        if listed and not self._takes_tools:
            _list_tools(turns, listed)
        try:
            text = self._tokenizer.apply_chat_template(
                turns,
                tools=listed if listed and self._takes_tools else None,
                tokenize=False,
                add_generation_prompt=True,
                **options,
            )
        except Exception as error:
            # A template is a program by the model's author and may raise anything. Its message
            # may quote the chat, so report only the error's type.
            raise ApiError(
                400,
                "messages: the model's chat template does not accept this sequence of roles "
                f"({type(error).__name__})",
                param="messages",
                code="chat_template_refused",
            ) from error
        return str(text)

    def _turn(self, message: Message) -> dict[str, Any]:
        # OpenAI renamed the system role; templates know the old name.
        role = "system" if message.role == "developer" else message.role
        # A template that does not expect null would print it as "None".
        turn: dict[str, Any] = {"role": role, "content": message.text}
        if message.tool_calls and self._takes_calls:
            turn["tool_calls"] = [call.for_template() for call in message.tool_calls]
        elif message.tool_calls:
            said = [message.text] if message.text else []
            turn["content"] = "\n".join([*said, *map(_call_text, message.tool_calls)])
        for name in ("name", "tool_call_id", "reasoning_content"):
            if (value := getattr(message, name)) is not None:
                turn[name] = value
        return turn


def _call_text(call: ToolCall) -> str:
    body = json.dumps(call.for_template()["function"], ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


def _list_tools(turns: list[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> None:
    """Add the tools to the end of the first system message, or as a new one."""
    lines = [_TOOLS_HEAD, *(json.dumps(tool, ensure_ascii=False) for tool in tools)]
    text = "\n".join(lines)
    if turns and turns[0]["role"] == "system":
        turns[0]["content"] = f"{turns[0]['content']}\n\n{text}"
    else:
        turns.insert(0, {"role": "system", "content": text})
