"""Bad prompts give typed errors that say where."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semblend.core.errors import InvalidTokensError
from semblend.core.tokens import MAX_PROMPT_TOKENS, as_token_array


@given(st.lists(st.integers(0, 2**31 - 1)))
def test_valid_ids_pass_unchanged(values):
    assert as_token_array(values).tolist() == values
    assert as_token_array(np.array(values, dtype=np.uint64)).tolist() == values


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([1, -1], r"tokens\[1\] = -1"),
        ([1, 2**31], r"tokens\[1\] = 2147483648"),
        ([2**70], "tokens"),
        ([1.5], "integers"),
        (["a"], "integers"),
        ([[1, 2]], "one dimension"),
        ([[1], [1, 2]], "tokens"),
        (None, "tokens"),
        (np.zeros((2, 2), dtype=np.int32), "one dimension"),
        (np.array([-5], dtype=np.int32), r"tokens\[0\] = -5"),
    ],
)
def test_bad_prompts_are_named(values, said):
    with pytest.raises(InvalidTokensError, match=said):
        as_token_array(values)


def test_an_enormous_prompt_is_refused():
    with pytest.raises(InvalidTokensError, match="at most"):
        as_token_array(np.zeros(MAX_PROMPT_TOKENS + 1, dtype=np.int32))
