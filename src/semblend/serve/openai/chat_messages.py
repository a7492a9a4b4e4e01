"""Messages and tools as chat clients and agents send them."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

_STRICT = ConfigDict(strict=True, extra="forbid", frozen=True)
_MEDIA = {
    "image_url": "images",
    "input_image": "images",
    "image": "images",
    "input_audio": "sound",
    "audio_url": "sound",
    "video_url": "videos",
    "video": "videos",
    "file": "files",
    "input_file": "files",
}


class TextPart(BaseModel):
    """A part of a message's content. Only text: the models cannot read images or sound."""

    model_config = _STRICT

    type: Literal["text"]
    text: str

    @model_validator(mode="before")
    @classmethod
    def _text_only(cls, data: Any) -> Any:
        kind = data.get("type") if isinstance(data, dict) else None
        if isinstance(kind, str) and kind in _MEDIA:
            raise ValueError(
                f"{_MEDIA[kind]} are not supported: this model reads text; remove the part"
            )
        # Clients of other servers mark parts for caching; here that is unnecessary.
        if isinstance(data, dict) and "cache_control" in data:
            return {name: value for name, value in data.items() if name != "cache_control"}
        return data


class FunctionCall(BaseModel):
    """The function a model called, with its arguments as JSON text."""

    model_config = _STRICT

    name: str = Field(min_length=1, max_length=256)
    arguments: str = ""


class ToolCall(BaseModel):
    """A call that an assistant made."""

    model_config = _STRICT

    id: str | None = Field(None, max_length=256)
    type: Literal["function"] = "function"
    index: int | None = None
    """Streams number their calls, and some clients send the number back."""
    function: FunctionCall

    def for_template(self) -> dict[str, Any]:
        """The call as templates read it: arguments as an object if they are one."""
        try:
            arguments = json.loads(self.function.arguments or "{}")
        except ValueError:
            arguments = self.function.arguments
        call = {"name": self.function.name, "arguments": arguments}
        return {"id": self.id, "type": "function", "function": call}


class ToolFunction(BaseModel):
    """A function a model may call."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    name: str = Field(min_length=1, max_length=256)
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(BaseModel):
    """A tool a model may call. Functions are the only kind."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    type: Literal["function"]
    function: ToolFunction

    def for_template(self) -> dict[str, Any]:
        """The tool as templates read it, without unset fields."""
        return {"type": "function", "function": self.function.model_dump(exclude_none=True)}


Content = str | list[TextPart]


class Message(BaseModel):
    """One turn of a chat."""

    model_config = _STRICT

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = Field(None, validate_default=True)
    name: str | None = Field(None, max_length=64)
    tool_calls: Annotated[list[ToolCall], Field(max_length=256)] | None = None
    tool_call_id: str | None = Field(None, max_length=256)
    reasoning_content: str | None = Field(
        None, description="An earlier turn's thinking; most templates strip it."
    )

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, data: Any) -> Any:
        """Drop nulls: clients send an assistant's message back with optional fields at null."""
        if not isinstance(data, dict):
            return data
        kept = {name: value for name, value in data.items() if value is not None and value != []}
        if "reasoning" in kept:  # vLLM's newer name for the same field
            kept.setdefault("reasoning_content", kept["reasoning"])
            del kept["reasoning"]
        return kept

    @field_validator("tool_calls")
    @classmethod
    def _only_assistants_call(cls, calls: Any, info: Any) -> Any:
        if calls and info.data.get("role") not in (None, "assistant"):
            raise ValueError("only an assistant message may have tool calls")
        return calls

    @field_validator("content")
    @classmethod
    def _says_something(cls, content: Any, info: Any) -> Any:
        if content is None and info.data.get("role") in ("system", "developer", "user"):
            raise ValueError("this field is required")
        return content

    @property
    def text(self) -> str:
        """The content as one string; empty if it is null."""
        if self.content is None:
            return ""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)

    @property
    def texts(self) -> list[tuple[str, str]]:
        """Every text of the message, with the name of its field."""
        found = [("content", self.text)]
        if self.reasoning_content:
            found.append(("reasoning_content", self.reasoning_content))
        for place, call in enumerate(self.tool_calls or ()):
            where = f"tool_calls[{place}].function"
            found.append((f"{where}.name", call.function.name))
            found.append((f"{where}.arguments", call.function.arguments))
        return found
