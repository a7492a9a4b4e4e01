"""Decodes engines' K/V cache events: two encodings of vLLM, and SGLang's.

A batch is a MessagePack array [time, events, rank]. An event is a map with a "type"
(vLLM from 0.32 on) or an array that begins with it (earlier vLLM, SGLang).
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from semblend.core.errors import MissingExtraError, SerialisationError

BlockHash: TypeAlias = int | bytes
"""An engine's name for a block: an unsigned 64-bit number, or a whole digest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTokens:
    """What stored blocks consist of, if the engine reports it completely.

    If an engine does not say under which keys (salt, adapter, images) it stored a block, it is
    unknown what the block can be used for.
    """

    parent: BlockHash | None
    """The block before the first; None at the start of a prompt."""
    token_ids: list[int] = field(repr=False)
    block_size: int
    keys: tuple[str, ...]
    """Per block, the other inputs of its hash as canonical text; empty if there are none."""
    adapter: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlocksStored:
    """Blocks are now in a medium of the engine's cache."""

    hashes: tuple[BlockHash, ...]
    medium: str = "GPU"
    group: int = 0
    content: StoredTokens | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BlocksRemoved:
    """Blocks left a medium."""

    hashes: tuple[BlockHash, ...]
    medium: str | None = None
    """None if the engine does not say: gone from wherever they were."""
    group: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheCleared:
    """The cache is empty."""


CacheEvent: TypeAlias = BlocksStored | BlocksRemoved | CacheCleared


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheBatch:
    """What one engine step changed."""

    events: tuple[CacheEvent, ...]
    dp_rank: int | None
    time: float = 0.0
    """By the engine's clock."""


# Positions in the array encoding, after the type.
_STORED_FIELDS = (
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
)
_REMOVED_FIELDS = ("block_hashes", "medium", "group_idx")


def decode_batch(payload: bytes) -> CacheBatch:
    """Read one batch.

    Raises
    ------
    SerialisationError
        If it is malformed. Unknown kinds of events are skipped: they move no blocks.
    """
    try:
        msgpack = importlib.import_module("msgpack")
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            package="msgpack", extra="fleet", purpose="following an engine's K/V events"
        ) from error
    try:
        batch = msgpack.unpackb(payload, raw=False, strict_map_key=False)
    except Exception as error:
        raise SerialisationError(f"K/V events are not MessagePack: {error}") from error
    if not isinstance(batch, list) or len(batch) < 2 or not isinstance(batch[1], list):
        raise SerialisationError("K/V events: expected an array [time, events, rank]")
    rank = batch[2] if len(batch) > 2 else None
    if rank is not None and not isinstance(rank, int):
        raise SerialisationError(f"K/V events: expected a whole number as rank, got {rank!r}")
    time = batch[0]
    if not isinstance(time, (int, float)):
        raise SerialisationError(f"K/V events: expected a number as time, got {time!r}")
    decoded = (_event(item) for item in batch[1])
    events = tuple(event for event in decoded if event)
    return CacheBatch(events=events, dp_rank=rank, time=float(time))


def keys_text(*keys: object) -> str:
    """What a block's hash depends on besides its tokens, as in :class:`StoredTokens`."""
    return repr(keys) if keys else ""


def block_name(value: int | str | bytes) -> BlockHash:
    """A block's name in one form: engines differ in signedness, and JSON carries bytes as hex."""
    if isinstance(value, str):
        return bytes.fromhex(value)
    return value & 0xFFFF_FFFF_FFFF_FFFF if isinstance(value, int) else value


def _event(item: object) -> CacheEvent | None:
    if isinstance(item, dict):
        kind, fields = item.get("type"), item
    elif isinstance(item, list) and item:
        kind = item[0]
        names = _STORED_FIELDS if kind == "BlockStored" else _REMOVED_FIELDS
        fields = dict(zip(names, item[1:], strict=False))
    else:
        raise SerialisationError("K/V events: expected each event to be a map or an array")
    match kind:
        case "BlockStored":
            return BlocksStored(
                hashes=(hashes := _hashes(fields)),
                medium=_medium(fields) or "GPU",
                group=_group(fields) or 0,
                content=_content(fields, len(hashes)),
            )
        case "BlockRemoved":
            return BlocksRemoved(
                hashes=_hashes(fields), medium=_medium(fields), group=_group(fields)
            )
        case "AllBlocksCleared":
            return CacheCleared()
        case str():
            return None
        case _:
            raise SerialisationError(f"K/V events: expected a name as type, got {kind!r}")


def _hashes(fields: dict[str, Any]) -> tuple[BlockHash, ...]:
    hashes = fields.get("block_hashes")
    if not isinstance(hashes, Sequence) or isinstance(hashes, (str, bytes)):
        raise SerialisationError("K/V events: expected an array as block_hashes")
    if not all(isinstance(value, (int, bytes)) for value in hashes):
        raise SerialisationError("K/V events: expected integers or bytes in block_hashes")
    return tuple(block_name(value) for value in hashes)


def _content(fields: dict[str, Any], blocks: int) -> StoredTokens | None:
    tokens, keys = fields.get("token_ids"), fields.get("extra_keys")
    size, parent = fields.get("block_size"), fields.get("parent_block_hash")
    adapter = fields.get("lora_name")
    if not isinstance(tokens, list) or not isinstance(keys, list) or not isinstance(size, int):
        return None
    if size < 1 or len(tokens) != size * blocks or len(keys) != blocks:
        return None  # Blocks are missing, so tokens cannot be assigned to blocks.
    if not all(isinstance(token, int) and 0 <= token < 2**31 for token in tokens):
        return None
    return StoredTokens(
        parent=block_name(parent) if isinstance(parent, (int, bytes)) else None,
        token_ids=tokens,
        block_size=size,
        keys=tuple(keys_text(*each) if isinstance(each, list) else "" for each in keys),
        adapter=adapter if isinstance(adapter, str) else "",
    )


def _group(fields: dict[str, Any]) -> int | None:
    group = fields.get("group_idx")
    if group is not None and not isinstance(group, int):
        raise SerialisationError(f"K/V events: expected a whole number as group_idx, got {group!r}")
    return group


def _medium(fields: dict[str, Any]) -> str | None:
    medium = fields.get("medium")
    return medium.upper() if isinstance(medium, str) else None
