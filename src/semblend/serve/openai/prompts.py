"""Turns chats, texts and ready-made ids into checked token ids.

Tokenizing runs on one separate thread: the event loop stays free, and a fast tokenizer,
which is not reentrant, is never entered twice.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from semblend.core.errors import InvalidTokensError
from semblend.core.tokens import TokenArray, as_token_array
from semblend.serve.api_errors import ApiError
from semblend.serve.openai.chat_messages import Message, Tool
from semblend.serve.openai.chat_template import ChatTemplate
from semblend.serve.openai.schemas import MAX_PROMPTS

Result = TypeVar("Result")

_OPTIONS = "chat_template_kwargs"


class PromptEncoder:
    """Ensures that only valid prompts within the length limit reach the engine."""

    def __init__(self, tokenizer: Any, *, max_prompt_tokens: int) -> None:
        self._tokenizer = tokenizer
        self._template = ChatTemplate(tokenizer)
        self._vocabulary = len(tokenizer)
        self.max_prompt_tokens = max_prompt_tokens
        longest = max((len(piece) for piece in tokenizer.get_vocab()), default=1)
        self._max_characters = max_prompt_tokens * longest
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="semblend-tokenise")

    async def chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        options: Mapping[str, Any] | None = None,
    ) -> TokenArray:
        """Token ids of a chat, rendered with the model's own template and its `options`."""
        if not self._template.exists:
            raise ApiError(
                400,
                "messages: this model has no chat template; use /v1/completions",
                param="messages",
                code="no_chat_template",
            )
        size = 0
        for index, message in enumerate(messages):
            for field, text in message.texts:
                _check_text(f"messages[{index}].{field}", text)
                size += len(text)
        self._check_size("messages", size)
        for name, value in (("tools", [t.for_template() for t in tools]), (_OPTIONS, options)):
            text = json.dumps(value, ensure_ascii=False)
            _check_text(name, text)
            self._check_size(name, len(text))
        tokens = await self._on_thread(
            lambda: self._encode(self._template.render(messages, tools, options or {}))
        )
        return self._checked("messages", tokens)

    async def completions(
        self, prompt: str | list[str] | list[int] | list[list[int]]
    ) -> list[TokenArray]:
        """Token ids of every prompt of a completion request."""
        if not isinstance(prompt, list) or not prompt or not isinstance(prompt[0], (str, list)):
            return [await self._completion("prompt", prompt)]
        if len(prompt) > MAX_PROMPTS:
            raise ApiError(
                400,
                f"prompt: expected at most {MAX_PROMPTS} prompts, got {len(prompt)}",
                param="prompt",
                code="invalid_value",
            )
        if len(prompt) == 1:
            return [await self._completion("prompt", prompt[0])]
        return [await self._completion(f"prompt[{i}]", one) for i, one in enumerate(prompt)]

    async def text(self, text: str) -> TokenArray:
        """Token ids of a text, for `/tokenize`. It may be empty or longer than a prompt."""
        _check_text("prompt", text)
        self._check_size("prompt", len(text))
        return np.asarray(await self._on_thread(lambda: self._encode(text)), dtype=np.int32)

    async def decode(self, tokens: Sequence[int]) -> str:
        """The text of token ids, for `/detokenize`."""
        array = self._checked("tokens", tokens)
        return await self._on_thread(lambda: str(self._tokenizer.decode(array.tolist())))

    async def pieces(self, tokens: TokenArray) -> list[str]:
        """Every token id as the tokenizer writes it."""
        ids = tokens.tolist()
        return await self._on_thread(lambda: list(self._tokenizer.convert_ids_to_tokens(ids)))

    async def _completion(self, param: str, prompt: Any) -> TokenArray:
        if isinstance(prompt, str):
            _check_text(param, prompt)
            self._check_size(param, len(prompt))
            return self._checked(param, await self._on_thread(lambda: self._encode(prompt)))
        return self._checked(param, prompt)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _on_thread(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _encode(self, text: str) -> list[int]:
        # Suppress the tokenizer's own warning: the check below refuses long prompts, and stderr
        # holds only JSON lines.
        return list(self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    def _check_size(self, param: str, characters: int) -> None:
        """Refuse text that cannot fit however it is tokenized, before tokenizing it."""
        if characters > self._max_characters:
            raise self._too_long(param, f"{characters} characters")

    def _too_long(self, param: str, size: str) -> ApiError:
        return ApiError(
            400,
            f"{param}: {size}, but this server accepts at most {self.max_prompt_tokens} tokens",
            param=param,
            code="context_length_exceeded",
        )

    def _checked(self, param: str, tokens: Sequence[Any]) -> TokenArray:
        if len(tokens) == 0:
            raise ApiError(400, f"{param}: expected at least one token", param=param, code="empty")
        if len(tokens) > self.max_prompt_tokens:
            raise self._too_long(param, f"{len(tokens)} tokens")
        try:
            array = as_token_array(tokens, name=param)
        except InvalidTokensError as error:
            raise ApiError(400, str(error), param=param, code="invalid_value") from error
        if int(array.max()) >= self._vocabulary:
            raise ApiError(
                400,
                f"{param}: token ids must be below {self._vocabulary}, got {int(array.max())}",
                param=param,
                code="invalid_value",
            )
        return array


def _check_text(param: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ApiError(
            400,
            f"{param}: not valid Unicode (a lone surrogate at character {error.start})",
            param=param,
            code="invalid_value",
        ) from error
