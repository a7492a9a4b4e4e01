"""A block pool with a salted radix cache, and a real model's forward over it.

The pool is [blocks, layers, 2, kv_heads * tokens * head_dim] a rank, as TensorRT-LLM hands
it to a connector; ranks split the heads.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from transformers import DynamicCache

from tests.integration.trtllm.generations import LlmRequest


class OutOfBlocksError(RuntimeError):
    pass


class BlockManager:
    """Allocates blocks, keeps full ones findable under (salt, all tokens before), counts users."""

    def __init__(self, blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.blocks = blocks
        self._free = list(range(blocks - 1, -1, -1))
        self._users = [0] * blocks
        self._cached: OrderedDict[tuple[Any, ...], int] = OrderedDict()
        self._key_of: dict[int, tuple[Any, ...]] = {}

    def match(self, request: LlmRequest) -> list[int]:
        """Blocks of the longest cached prefix, at most all but the last token."""
        tokens, found = request.get_tokens(0)[: request.prompt_len], []
        for end in range(self.block_size, len(tokens), self.block_size):
            block = self._cached.get((request.salt, tuple(tokens[:end])))
            if block is None:
                break
            found.append(block)
        return found

    def take(self, matched: list[int], count: int) -> list[int]:
        """The matched blocks and as many new ones as make `count`."""
        for block in matched:
            self._users[block] += 1
        new: list[int] = []
        try:
            for _ in range(count - len(matched)):
                new.append(self._new())
        except OutOfBlocksError:
            self.release([*matched, *new])
            raise
        return [*matched, *new]

    def available(self) -> int:
        idle = sum(1 for block in self._key_of if not self._users[block])
        return len(self._free) + idle

    def publish(self, request: LlmRequest) -> None:
        """The radix commit: full blocks of the prompt can be found under the request's salt."""
        tokens = request.get_tokens(0)[: request.prompt_len]
        for number in range(len(tokens) // self.block_size):
            key = (request.salt, tuple(tokens[: (number + 1) * self.block_size]))
            block = request.block_ids[number]
            if key not in self._cached and block not in self._key_of:
                self._cached[key] = block
                self._key_of[block] = key

    def release(self, blocks: list[int]) -> None:
        for block in blocks:
            self._users[block] -= 1
            assert self._users[block] >= 0, "a block was freed twice"
            if not self._users[block] and block not in self._key_of:
                self._free.append(block)

    def forget_cached(self) -> None:
        """Evict everything nobody uses."""
        for block in [one for one in self._key_of if not self._users[one]]:
            self._cached.pop(self._key_of.pop(block))
            self._free.append(block)

    @property
    def users(self) -> int:
        return sum(self._users)

    def _new(self) -> int:
        if not self._free:
            for block in list(self._key_of):
                if not self._users[block]:
                    self._cached.pop(self._key_of.pop(block))
                    self._free.append(block)
                    break
            else:
                raise OutOfBlocksError
        block = self._free.pop()
        self._users[block] = 1
        return block


class PagedModel:
    """A transformers model that computes on top of what the pool holds."""

    def __init__(self, model: Any, *, blocks: int, block_size: int, ranks: int = 1) -> None:
        config = model.config
        self.model = model
        self.block_size = block_size
        self.layers = config.num_hidden_layers
        self.heads = config.num_key_value_heads
        self.head_dim = getattr(config, "head_dim", None) or (
            config.hidden_size // config.num_attention_heads
        )
        inner = self.heads // ranks * block_size * self.head_dim
        # What was never written must not pass for K/V.
        self.pools = [
            torch.full((blocks, self.layers, 2, inner), float("nan")) for _ in range(ranks)
        ]

    def view(self, rank: int) -> torch.Tensor:
        """[blocks, layers, 2, kv_heads, tokens, head_dim] of one rank."""
        pool = self.pools[rank]
        return pool.view(pool.shape[0], self.layers, 2, -1, self.block_size, self.head_dim)

    def read(self, block_ids: list[int], end: int) -> torch.Tensor:
        """[layers, 2, kv_heads, end, head_dim], all ranks' heads."""
        count = -(-end // self.block_size)
        parts = []
        for rank in range(len(self.pools)):
            taken = self.view(rank)[torch.tensor(block_ids[:count], dtype=torch.long)]
            parts.append(taken.permute(1, 2, 3, 0, 4, 5).flatten(3, 4)[:, :, :, :end])
        return torch.cat(parts, dim=2)

    @torch.no_grad()
    def forward(self, request: LlmRequest, start: int, end: int) -> torch.Tensor:
        """Compute tokens [start, end) on top of the pool; logits of the last, K/V written."""
        cache = DynamicCache(config=self.model.config)
        if start:
            past = self.read(request.block_ids, start)
            assert not past.isnan().any(), "the model reads K/V that nobody wrote"
            for layer in range(self.layers):
                cache.update(past[layer, 0][None], past[layer, 1][None], layer)
        ids = torch.tensor([request.get_tokens(0)[start:end]])
        output = self.model(
            input_ids=ids,
            position_ids=torch.arange(start, end)[None],
            past_key_values=cache,
            use_cache=True,
        )
        for layer in range(self.layers):
            for which, held in enumerate((cache.layers[layer].keys, cache.layers[layer].values)):
                self._write(request.block_ids, layer, which, held[0, :, start:end], start)
        return output.logits[0, -1].float()

    def _write(
        self, block_ids: list[int], layer: int, which: int, kv: torch.Tensor, start: int
    ) -> None:
        size = self.block_size
        positions = torch.arange(start, start + kv.shape[1])
        blocks = torch.tensor(block_ids, dtype=torch.long)[positions // size]
        split = kv.shape[0] // len(self.pools)
        for rank in range(len(self.pools)):
            mine = kv[rank * split : (rank + 1) * split]
            # Indexed dimensions come first: [tokens, heads, head_dim].
            self.view(rank)[blocks, layer, which, :, positions % size] = mine.transpose(0, 1)
