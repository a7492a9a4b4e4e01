"""Tells moved text from edited text.

All reused tokens are identical, yet a span that follows a changed word carries the old word's
meaning in its K/V (docs/concepts.md). The text just before the span decides: if donor and target
say the same thing there with a small difference, the span follows an edit. If they say unrelated
things, it moved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from semblend.core.plan import Span, SpanKind
from semblend.core.tokens import TokenArray
from semblend.discovery.alignment import edit_similarity
from semblend.discovery.runs import DonorRun
from semblend.planning.boundaries import Boundaries

SAME_TEXT = 0.5
"""Similarity of the text before a span above which it is the same text, edited. Unrelated windows
of natural text share some function words and score below 0.35. One changed word in thirty scores
above 0.9.
"""

NEAREST_TOKENS = 16
"""Look at the closest text first, by itself: before an edit in a document's first sentence there is
only a different instruction.
"""


def classify(
    runs: list[DonorRun],
    *,
    target: TokenArray,
    donor_tokens: Callable[[str], TokenArray | None],
    window: int,
    prefixes: Mapping[str, int],
    boundaries: Boundaries | None = None,
) -> list[Span]:
    """Mark each chosen run as prefix, moved or behind an edit.

    Parameters
    ----------
    runs
        Disjoint runs in target order.
    donor_tokens
        Token ids of a donor, or None if it is gone. Called at most once per donor, and
        only if the neighbouring runs do not decide.
    window
        Largest difference that counts as an edit.
    prefixes
        By donor, how many tokens it shares with the target from position 0 on. K/V
        inside those is exact wherever the engine's own prefix cache ends.
    boundaries
        To detect moved passages that start a paragraph; None detects none.
    """
    texts: dict[str, TokenArray | None] = {}

    def text_of(donor_id: str) -> TokenArray | None:
        if donor_id not in texts:
            texts[donor_id] = donor_tokens(donor_id)
        return texts[donor_id]

    spans: list[Span] = []
    previous: DonorRun | None = None
    for run in runs:
        opens = False
        stays = run.donor_start == run.target_start
        if stays and run.target_end <= prefixes.get(run.donor_id, 0):
            kind, edit = SpanKind.PREFIX, None
        else:
            edit = _edit_before(run, previous, target, text_of, window)
            kind = SpanKind.MOVED if edit is None else SpanKind.BEHIND_EDIT
            if edit is None:
                opens = _opens(run, target, text_of(run.donor_id), boundaries)
        spans.append(
            Span(
                donor_id=run.donor_id,
                donor_start=run.donor_start,
                target_start=run.target_start,
                length=run.length,
                kind=kind,
                edit_tokens=edit or 0,
                opens=opens,
            )
        )
        previous = run
    return spans


def _edit_before(
    run: DonorRun,
    previous: DonorRun | None,
    target: TokenArray,
    text_of: Callable[[str], TokenArray | None],
    window: int,
) -> int | None:
    """Size of the edit just before `run`, or None."""
    if previous is not None and previous.donor_id == run.donor_id:
        edit = _edit_between(previous, run, window)
        if edit is not None:
            return edit
    text = text_of(run.donor_id)
    if text is None:
        return window
    here, there = run.target_start, run.donor_start
    # A clipped run continues to the left. What matters is the text before all of it.
    back = _common_suffix(target[:here], text[:there])
    here, there = here - back, there - back
    if here == 0 or there == 0:
        return None
    reach = NEAREST_TOKENS
    while reach < 2 * window:
        looked = min(reach, window)
        new, old = target[max(0, here - looked) : here], text[max(0, there - looked) : there]
        if edit_similarity(new, old) >= SAME_TEXT:
            return max(new.size, old.size)
        reach *= 2
    return None


def _edit_between(previous: DonorRun, run: DonorRun, window: int) -> int | None:
    """Size of the difference between two runs from the same place in one donor.

    Replaced, inserted and deleted text leaves a small gap on either side. Swapped text comes from
    just before; longer passages from there have moved.
    """
    new = run.target_start - previous.target_end
    if new > window:
        return None
    old = run.donor_start - (previous.donor_start + previous.length)
    if 0 <= old <= window:
        return max(new, old, 1)
    behind = previous.donor_start - (run.donor_start + run.length)
    if -window <= behind <= window and max(run.length, previous.length) <= window:
        return max(new, abs(behind), 1)
    return None


def _opens(
    run: DonorRun, target: TokenArray, text: TokenArray | None, boundaries: Boundaries | None
) -> bool:
    """Whether a run starts a paragraph or a turn in both texts."""
    if text is None or boundaries is None:
        return False
    return boundaries.begins(target, run.target_start) and boundaries.begins(text, run.donor_start)


def _common_suffix(a: TokenArray, b: TokenArray) -> int:
    size = min(a.size, b.size)
    different = a[a.size - size :][::-1] != b[b.size - size :][::-1]
    return int(different.argmax()) if different.any() else size
