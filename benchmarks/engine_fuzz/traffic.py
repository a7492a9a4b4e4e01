"""What the fuzz sends: prompts that hit, miss, repeat, share prefixes, or have reuse off."""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from semblend.core.tokens import TokenArray
from semblend.quality.items import Item, to_item
from semblend.quality.suite import Cell

WORKLOADS = ("composed", "edited_exchanged", "reordered", "instruction", "edited_numbers")
SALTS: tuple[str | None, ...] = (None, "acme", "acme ", "globex", " ")
"""Two pairs that differ by a space, and one that is only a space: all are separate tenants."""
OFF = {"reuse": False, "capture": False}
MOST_TOKENS = 24
_ABORTED = 0.1
_PAST = 200
"""Prompts that may be repeated or continued."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Asked:
    """One request as sent."""

    number: int
    kind: str
    tokens: TokenArray
    salt: str | None
    hints: dict[str, Any]
    most: int
    """Tokens of the answer."""
    abort_after: int | None = None
    """Steps after arrival until it is aborted, if it is."""

    @property
    def request_id(self) -> str:
        """The id given to the engine."""
        return f"fuzz{self.number}"

    def __str__(self) -> str:
        return (
            f"request {self.number} ({self.kind}, {len(self.tokens)} tokens, salt {self.salt!r}, "
            f"hints {self.hints}, {self.most} tokens asked)"
        )


@dataclass(slots=True)
class Traffic:
    """Generates requests from a seed; same seed, same requests."""

    tokenizer: Any
    seed: int
    lengths: Sequence[int]
    longest: int
    """Maximum prompt tokens."""
    prefixes_only: bool = False
    """Whether only whole prefixes are loaded."""
    policies: Sequence[str] = ()
    """Policies that requests ask for, if the mode allows it."""
    _random: random.Random = field(init=False)
    _numbers: Iterator[int] = field(init=False)
    _items: Iterator[int] = field(init=False)
    _past: deque[Asked] = field(init=False)
    _ready: deque[tuple[Item, str | None]] = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(f"vllm-fuzz-{self.seed}")
        self._numbers, self._items = itertools.count(), itertools.count()
        self._past, self._ready = deque(maxlen=_PAST), deque()

    def burst(self, most: int) -> list[Asked]:
        """Requests that arrive at once, at most `most`."""
        asked: list[Asked] = []
        wanted = self._random.randint(1, most)
        while len(asked) < wanted:
            made = self._make()
            asked += made[: most - len(asked)]
        self._past.extend(asked)
        return asked

    def pair_for(self, salt: str) -> tuple[list[Asked], Asked]:
        """Donors and a request that can load from them, with their own salt, none aborted."""
        item = self._item()
        donors = [
            self._ask("donor", tokens, salt, {"reuse": False}, abort=False)
            for tokens in item.donors
        ]
        tokens = item.tokens
        if self.prefixes_only:
            tokens = np.concatenate([item.donors[0], self.text(20)])
        return donors, self._ask("target", tokens, salt, {"capture": False}, abort=False)

    def _make(self) -> list[Asked]:
        # Donors need a moment to be stored.
        if self._ready and self._random.random() < (0.7 if len(self._ready) > 3 else 0.1):
            return [self._target()]
        kinds = {
            self._donors: 20,
            self._miss: 12,
            self._repeat: 36 if self.prefixes_only else 18,
            self._extension: 64 if self.prefixes_only else 16,
            self._sharing: 12,
            self._bystander: 14,
        }
        (make,) = self._random.choices(list(kinds), weights=list(kinds.values()))
        return make()

    def _donors(self) -> list[Asked]:
        """The earlier prompts of an item; the item's own prompt comes later."""
        item, salt = self._item(), self._random.choice(SALTS)
        for _ in range(self._random.choice((1, 1, 2))):
            self._ready.append((item, salt))
        hints = {} if self._random.random() < 0.5 else {"reuse": False}
        return [self._ask("donor", tokens, salt, hints) for tokens in item.donors]

    def _target(self) -> Asked:
        item, salt = self._ready.popleft()
        if self._random.random() < 0.15:
            salt = self._random.choice(SALTS)  # usually another tenant's: a miss
        return self._ask("target", item.tokens, salt, self._reusing())

    def _miss(self) -> list[Asked]:
        tokens = self.text(self._random.randint(32, self.longest))
        return [self._ask("miss", tokens, self._random.choice(SALTS), {})]

    def _repeat(self) -> list[Asked]:
        if not self._past:
            return self._miss()
        before = self._random.choice(self._past)
        return [self._ask("repeat", before.tokens, before.salt, self._reusing())]

    def _extension(self) -> list[Asked]:
        if not self._past:
            return self._miss()
        before = self._random.choice(self._past)
        kept = before.tokens[: self._random.randint(len(before.tokens) // 2, len(before.tokens))]
        tokens = np.concatenate([kept, self.text(self._random.randint(1, 90)), kept[-12:]])
        return [self._ask("extension", tokens, before.salt, self._reusing())]

    def _sharing(self) -> list[Asked]:
        """Prompts with a common start in one step: one may hit blocks another has yet to fill."""
        base = self._random.choice(self._past).tokens if self._past else self.text(300)
        base = base[: self._random.randint(len(base) // 2, len(base))]
        salt = self._random.choice(SALTS)
        return [
            self._ask("sharing", np.concatenate([base, self.text(size), base[-12:]]), salt, {})
            for size in (3, self._random.randint(4, 60))
        ]

    def _bystander(self) -> list[Asked]:
        item = self._item()
        return [self._ask("bystander", item.tokens, self._random.choice(SALTS), OFF)]

    def _reusing(self) -> dict[str, Any]:
        hints: dict[str, Any] = {} if self._random.random() < 0.6 else {"capture": False}
        if self.policies and self._random.random() < 0.7:
            hints["policy"] = self._random.choice(list(self.policies))
        return hints

    def _item(self) -> Item:
        number = next(self._items)
        cell = Cell(
            workload=WORKLOADS[number % len(WORKLOADS)],
            items=1,
            specs=(),
            lengths=(self._random.choice(list(self.lengths)),),
            first=number,
        )
        (case,) = cell.cases(self.seed)
        return to_item(case, self.tokenizer)

    def text(self, tokens: int) -> TokenArray:
        """This many random tokens."""
        drawn = [self._random.randrange(10, len(self.tokenizer)) for _ in range(tokens)]
        return np.array(drawn, dtype=np.int32)

    def _ask(
        self,
        kind: str,
        tokens: TokenArray,
        salt: str | None,
        hints: dict[str, Any],
        *,
        abort: bool = True,
    ) -> Asked:
        aborted = abort and self._random.random() < _ABORTED
        return Asked(
            number=next(self._numbers),
            kind=kind,
            tokens=tokens[: self.longest],
            salt=salt,
            hints=dict(hints),
            most=self._random.choice((1, 1, 2, 4, 8, 16, MOST_TOKENS)),
            abort_after=self._random.randint(0, 12) if aborted else None,
        )
