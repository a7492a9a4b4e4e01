"""Well-formed documents with wrong contents, drawn by hypothesis.

Coverage-guided fuzzing is strong at bytes and weak at keeping JSON valid; this covers the other
half. It replaces, removes, repeats and nests values at random places of a seed document.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

_NUMBERS = st.one_of(
    st.integers(-(2**70), 2**70),
    st.sampled_from([0, -1, 2**31, 2**63, 10**400]),
    st.floats(allow_nan=True, allow_infinity=True),
)
_TEXTS = st.one_of(
    st.text(max_size=20),
    st.sampled_from(["", "\ud800", "none", "../../etc/passwd", "\0", "9" * 5000, "é" * 300]),
)
_LEAVES = st.one_of(st.none(), st.booleans(), _NUMBERS, _TEXTS)
VALUES = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXTS, inner, max_size=4),
    max_leaves=8,
)
_DEEP = st.integers(1, 60_000).map(lambda depth: "[" * depth + "]" * depth)


def damaged(seeds: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """Inputs derived from a target's seeds."""
    documents = [json.loads(seed) for seed in seeds if _is_json(seed)]
    choices = [_changed_bytes(seeds), VALUES.map(_dump)]
    if documents:
        choices.insert(0, _changed_documents(documents))
        choices.insert(1, _changed_documents(documents))
        choices.append(_nested(documents))
    return st.one_of(*choices)


@st.composite
def _changed_documents(draw: st.DrawFn, documents: Sequence[Any]) -> bytes:
    document = json.loads(json.dumps(draw(st.sampled_from(list(documents)))))
    for _ in range(draw(st.integers(1, 3))):
        document = _change(draw, document)
    return _dump(document)


def _change(draw: st.DrawFn, node: Any) -> Any:
    """The document with one place changed, at a random depth."""
    if isinstance(node, dict) and node and draw(st.booleans()) | draw(st.booleans()):
        key = draw(st.sampled_from(sorted(node)))
        match draw(st.integers(0, 5)):
            case 0:
                return {name: value for name, value in node.items() if name != key}
            case 1:
                return {**node, draw(_TEXTS): draw(VALUES)}
            case _:
                return {**node, key: _change(draw, node[key])}
    if isinstance(node, list) and node and draw(st.booleans()) | draw(st.booleans()):
        at = draw(st.integers(0, len(node) - 1))
        if draw(st.integers(0, 4)) == 0:
            return node * 2
        return [*node[:at], _change(draw, node[at]), *node[at + 1 :]]
    return draw(VALUES)


@st.composite
def _nested(draw: st.DrawFn, documents: Sequence[Any]) -> bytes:
    """A document with one value nested deeper than any stack."""
    document = draw(st.sampled_from(list(documents)))
    deep = draw(_DEEP)
    if not isinstance(document, dict) or not document:
        return deep.encode()
    key = draw(st.sampled_from(sorted(document)))
    return _dump({**document, key: "@deep@"}).replace(b'"@deep@"', deep.encode())


@st.composite
def _changed_bytes(draw: st.DrawFn, seeds: Sequence[bytes]) -> bytes:
    data = bytearray(draw(st.sampled_from(list(seeds))))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data)))
        data[at : at + draw(st.integers(0, 8))] = draw(st.binary(max_size=8))
    return bytes(data)


def _dump(value: Any) -> bytes:
    return json.dumps(value).encode()


def _is_json(seed: bytes) -> bool:
    try:
        json.loads(seed)
    except ValueError:
        return False
    return True
