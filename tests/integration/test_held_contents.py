"""A content has one donor, and is free again as soon as that donor is gone."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from semblend.core.namespace import Namespace
from semblend.integration.held_contents import HeldContents
from semblend.integration.isolation import by_salt

NAMESPACES = [Namespace.of(model="m", cache_salt=by_salt(salt)) for salt in (None, "a")]
CONTENTS = [np.array(tokens, dtype=np.int32) for tokens in ([1, 2, 3], [1, 2], [3, 2, 1])]
STEPS = st.lists(
    st.tuples(st.booleans(), st.integers(0, 5), st.integers(0, 2), st.integers(0, 1)), max_size=40
)


def holds(held, tokens, namespace):
    """Whether these tokens are another donor's."""
    free = held.reserve("another", tokens, namespace)
    held.release("another")
    return not free


@given(steps=STEPS)
def test_it_is_a_table_of_contents_by_donor(steps):
    held, donors = HeldContents(), {}
    for reserves, donor, content, place in steps:
        name, key = f"d{donor}", (content, place)
        if not reserves:
            held.release(name)
            donors.pop(name, None)
        elif name not in donors:
            taken = held.reserve(name, CONTENTS[content], NAMESPACES[place])
            assert taken is (key not in donors.values())
            if taken:
                donors[name] = key
        for number, tokens in enumerate(CONTENTS):
            for other, namespace in enumerate(NAMESPACES):
                assert holds(held, tokens, namespace) is ((number, other) in donors.values())
    held.clear()
    assert not any(holds(held, tokens, NAMESPACES[0]) for tokens in CONTENTS)
