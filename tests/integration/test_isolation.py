"""Salts that differ in a byte are two salts, wherever they are named."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from semblend.core.namespace import Namespace, salt_part
from semblend.core.settings import Settings
from semblend.integration.isolation import UNSALTED, by_extra_key, by_salt
from semblend.integration.ladder import new_salt, split_salt
from semblend.integration.provider import SemBlendProvider
from semblend.integration.vllm import namespaces as vllm
from semblend.serve.gateway.placing import _salt_part

ENGINE = Namespace.of(model="m")
SGLANG = SemBlendProvider(ENGINE, Settings(embedder="none"))
EDGES = (" ", "\t", "\n", "\0", "\u00a0", "\u200b", "|", ".")


@st.composite
def near_equal(draw: st.DrawFn) -> tuple[str | None, str | None]:
    """Two salts that a careless reader takes for one: edges, case, normal forms, none at all."""
    salt = draw(st.text(max_size=12))
    change = draw(
        st.sampled_from(
            [
                lambda text: text + draw(st.sampled_from(EDGES)),
                lambda text: draw(st.sampled_from(EDGES)) + text,
                str.strip,
                str.upper,
                str.casefold,
                lambda text: text.replace("é", "e\u0301"),
                lambda text: text[:-1],
                lambda _: None,
            ]
        )
    )
    return salt, change(salt)


def vllm_name(salt: str | None) -> bytes:
    return vllm.of_request(ENGINE, salt).key()


def sglang_name(salt: str | None) -> bytes:
    return SGLANG.namespace_of(None, salt).key()


def sglang_key_name(key: str | None) -> bytes:
    return SGLANG.namespace_of(key, None).key()


def trtllm_name(salt: str | None) -> bytes:
    return ENGINE.with_parts(cache_salt=by_salt(salt)).key()


def embedded_name(salt: str | None) -> bytes:
    return ENGINE.with_parts(cache_salt=salt_part(salt)).key()


def ladder_name(salt: str | None) -> bytes:
    """What a rung of a ladder is called, whose own salt hides the user's."""
    return trtllm_name(split_salt(new_salt(salt))[0])


SEPARATING = [vllm_name, sglang_name, sglang_key_name, trtllm_name, embedded_name, ladder_name]
EMPTY_IS_NONE = {vllm_name, sglang_name}
"""As these engines themselves have it: see docs of each."""


@pytest.mark.parametrize("name", SEPARATING)
@given(pair=near_equal())
@example(pair=("acme", "acme "))
@example(pair=(" ", None))
@example(pair=(" ", ""))
@example(pair=("", None))
def test_salts_that_differ_in_a_byte_are_two_salts(
    name: Callable[[str | None], bytes], pair: tuple[str | None, str | None]
) -> None:
    one, other = pair
    assume(one != other)
    if name in EMPTY_IS_NONE:
        assume({one, other} != {"", None})
    assert name(one) != name(other)
    assert name(one) == name(one)


@pytest.mark.parametrize("name", sorted(EMPTY_IS_NONE, key=repr))
def test_an_empty_salt_is_none_where_the_engine_says_so(
    name: Callable[[str | None], bytes],
) -> None:
    assert name("") == name(None)


@given(
    one=st.tuples(st.text("ab\0", max_size=4), st.text("ab\0", min_size=1, max_size=4)),
    other=st.tuples(st.text("ab\0", max_size=4), st.text("ab\0", min_size=1, max_size=4)),
)
@example(one=("a\0b", "c"), other=("a", "b\0c"))
@example(one=("", "a"), other=("a", "a"))
def test_a_key_and_a_salt_never_run_into_each_other(
    one: tuple[str, str], other: tuple[str, str]
) -> None:
    assume(one != other)
    assert by_extra_key(*one) != by_extra_key(*other)


def test_salts_are_names_that_reveal_nothing_and_no_salt_is_one_of_them() -> None:
    assert by_salt(None) == UNSALTED
    assert by_salt(UNSALTED) != UNSALTED
    assert "secret" not in by_salt("secret") + by_extra_key("secret", "secret")


def test_half_a_surrogate_pair_is_a_salt_like_any_other() -> None:
    assert by_salt("\ud800") != by_salt("\ud801")
    assert by_extra_key("\ud800", None) != by_extra_key("\ud801", None)


@pytest.mark.parametrize("layout", ["segments:x", "trtllm:x", "slots:x", "layers,2,pages"], ids=str)
@given(pair=near_equal())
@example(pair=("acme", "acme "))
@example(pair=(" ", None))
def test_the_gateway_separates_what_its_workers_separate(
    layout: str, pair: tuple[str | None, str | None]
) -> None:
    one, other = pair
    assume(one != other)
    if layout.startswith(("segments:", "slots:")):
        assume({one, other} != {"", None})
    assert _salt_part(one, None, layout) != _salt_part(other, None, layout)


@given(user=st.one_of(st.none(), st.text(max_size=20)))
@example(user="")
@example(user=" ")
@example(user="semblend-ladder:1")
@example(user="a|semblend-ladder:1")
def test_a_ladder_keeps_its_users_salt_byte_for_byte(user: str | None) -> None:
    assert split_salt(new_salt(user))[0] == user
