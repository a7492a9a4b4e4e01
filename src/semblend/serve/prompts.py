"""Prompts into token ids: chat templates, text and ready-made ids, checked at the edge.

Tokenising runs on one thread of its own: the event loop stays free, and a fast
tokenizer, which is not safe to enter twice, is never entered twice from here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from semblend.core.errors import InvalidTokensError
from semblend.core.tokens import TokenArray, as_token_array
from semblend.serve.errors import ApiError
from semblend.serve.schemas import Message

Result = TypeVar("Result")


class PromptEncoder:
    """Owns the rule that what reaches the engine is a valid, not too long prompt."""

    def __init__(self, tokenizer: Any, *, max_prompt_tokens: int) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = len(tokenizer)
        self.max_prompt_tokens = max_prompt_tokens
        longest = max((len(piece) for piece in tokenizer.get_vocab()), default=1)
        self._max_characters = max_prompt_tokens * longest
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="semblend-tokenise")

    async def chat(self, messages: Sequence[Message]) -> TokenArray:
        """Token ids of a chat, rendered with the model's own template."""
        if not getattr(self._tokenizer, "chat_template", None):
            raise ApiError(
                400,
                "messages: this model has no chat template; use /v1/completions",
                param="messages",
                code="no_chat_template",
            )
        for index, message in enumerate(messages):
            _check_text(f"messages[{index}].content", message.text)
        self._check_size("messages", sum(len(message.text) for message in messages))
        tokens = await self._on_thread(lambda: self._encode(self._render(messages)))
        return self._checked("messages", tokens)

    async def completion(self, prompt: str | list[str] | list[int] | list[list[int]]) -> TokenArray:
        """Token ids of the one prompt of a completion request."""
        if isinstance(prompt, list) and prompt and isinstance(prompt[0], (str, list)):
            if len(prompt) != 1:
                raise ApiError(
                    400,
                    f"prompt: one prompt a request expected, got {len(prompt)}",
                    param="prompt",
                    code="invalid_value",
                )
            prompt = prompt[0]
        if isinstance(prompt, str):
            text = prompt
            _check_text("prompt", text)
            self._check_size("prompt", len(text))
            return self._checked("prompt", await self._on_thread(lambda: self._encode(text)))
        return self._checked("prompt", prompt)

    def close(self) -> None:
        """Let the thread go."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _on_thread(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _render(self, messages: Sequence[Message]) -> str:
        turns = [
            # OpenAI renamed the system role; models' templates know the old name.
            {
                "role": "system" if message.role == "developer" else message.role,
                "content": message.text,
            }
            for message in messages
        ]
        try:
            text = self._tokenizer.apply_chat_template(
                turns, tokenize=False, add_generation_prompt=True
            )
        except Exception as error:
            # A template is a program of the model's author and may raise anything; its
            # message can repeat the chat, so only its kind is passed on.
            raise ApiError(
                400,
                "messages: the model's chat template does not accept this sequence of roles "
                f"({type(error).__name__})",
                param="messages",
                code="chat_template_refused",
            ) from error
        return str(text)

    def _encode(self, text: str) -> list[int]:
        # Quietly: a prompt that is too long is refused below, not warned about on stderr, where
        # each line is one JSON object.
        return list(self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    def _check_size(self, param: str, characters: int) -> None:
        """Refuse what cannot fit however it is cut, before the tokenizer spends time on it."""
        if characters > self._max_characters:
            raise self._too_long(param, f"{characters} characters")

    def _too_long(self, param: str, size: str) -> ApiError:
        return ApiError(
            400,
            f"{param}: {size}, this server takes at most {self.max_prompt_tokens} tokens",
            param=param,
            code="context_length_exceeded",
        )

    def _checked(self, param: str, tokens: Sequence[Any]) -> TokenArray:
        if len(tokens) == 0:
            raise ApiError(400, f"{param}: at least one token expected", param=param, code="empty")
        if len(tokens) > self.max_prompt_tokens:
            raise self._too_long(param, f"{len(tokens)} tokens")
        try:
            array = as_token_array(tokens, name=param)
        except InvalidTokensError as error:
            raise ApiError(400, str(error), param=param, code="invalid_value") from error
        if int(array.max()) >= self._vocabulary:
            raise ApiError(
                400,
                f"{param}: token ids are below {self._vocabulary}, got {int(array.max())}",
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
