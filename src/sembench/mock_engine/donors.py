"""An honest span finder: identical token runs in earlier prompts, at any position.

Every window of `min_span_tokens` donor ids is indexed. A window found in a new prompt is
extended token by token while donor and target agree. A hash only proposes; the tokens
decide. Donors never cross namespaces.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from sembench.metrics import TokenArray

_CANDIDATES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundSpan:
    """target[target_start:+length] equals donor[donor_start:+length], token for token."""

    donor_id: str
    donor_start: int
    target_start: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredDonor:
    """A prompt that was computed exactly."""

    donor_id: str
    namespace: str
    tokens: TokenArray
    text: str


class MockDonorStore:
    """Holds donors and finds runs in them; evicts the oldest donor first."""

    def __init__(self, *, min_span_tokens: int, max_donors: int) -> None:
        self._window = min_span_tokens
        self._max_donors = max_donors
        self._donors: OrderedDict[str, StoredDonor] = OrderedDict()
        self._index: dict[tuple[str, bytes], list[tuple[str, int]]] = {}

    def register(self, donor: StoredDonor) -> None:
        """Store a donor, replacing any with the same id."""
        if donor.donor_id in self._donors:
            self._forget(donor.donor_id)
        self._donors[donor.donor_id] = donor
        for position, window in self._windows(donor.tokens):
            entries = self._index.setdefault((donor.namespace, window), [])
            if len(entries) < _CANDIDATES:
                entries.append((donor.donor_id, position))
        while len(self._donors) > self._max_donors:
            self._forget(next(iter(self._donors)))

    def has_any(self, namespace: str) -> bool:
        return any(donor.namespace == namespace for donor in self._donors.values())

    def latest(self, namespace: str) -> StoredDonor | None:
        """The donor registered last in the namespace."""
        return next(
            (item for item in reversed(self._donors.values()) if item.namespace == namespace), None
        )

    def get(self, donor_id: str) -> StoredDonor | None:
        return self._donors.get(donor_id)

    def clear(self) -> None:
        self._donors.clear()
        self._index.clear()

    def __len__(self) -> int:
        return len(self._donors)

    def find(self, namespace: str, tokens: TokenArray, start: int) -> tuple[FoundSpan, ...]:
        """Disjoint runs covering target[start:-1], left to right, the longest at each position.

        The last token is never covered, because an engine must compute at least one to answer.
        """
        end = len(tokens) - 1
        data = tokens.astype("<u4").tobytes()
        spans: list[FoundSpan] = []
        position = start
        while position + self._window <= end:
            window = data[4 * position : 4 * (position + self._window)]
            best = self._longest(self._index.get((namespace, window), ()), tokens, position, end)
            if best is None:
                position += 1
            else:
                spans.append(best)
                position += best.length
        return tuple(spans)

    def _longest(
        self,
        candidates: list[tuple[str, int]] | tuple[()],
        tokens: TokenArray,
        position: int,
        end: int,
    ) -> FoundSpan | None:
        best: FoundSpan | None = None
        for donor_id, donor_start in candidates:
            donor = self._donors[donor_id].tokens
            limit = min(end - position, len(donor) - donor_start)
            length = 0
            while length < limit and donor[donor_start + length] == tokens[position + length]:
                length += 1
            if length >= self._window and (best is None or length > best.length):
                best = FoundSpan(
                    donor_id=donor_id,
                    donor_start=donor_start,
                    target_start=position,
                    length=length,
                )
        return best

    def _windows(self, tokens: TokenArray) -> list[tuple[int, bytes]]:
        data = tokens.astype("<u4").tobytes()
        last = len(tokens) - self._window
        return [(at, data[4 * at : 4 * (at + self._window)]) for at in range(last + 1)]

    def _forget(self, donor_id: str) -> None:
        donor = self._donors.pop(donor_id)
        for _, window in self._windows(donor.tokens):
            key = (donor.namespace, window)
            kept = [entry for entry in self._index.get(key, ()) if entry[0] != donor_id]
            if kept:
                self._index[key] = kept
            else:
                self._index.pop(key, None)
