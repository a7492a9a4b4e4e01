"""Donors never cross a namespace, and an unknown part is never "any"."""

from dataclasses import fields

import pytest

from semblend.core.errors import NamespaceError
from semblend.core.namespace import Namespace

PARTS = [field.name for field in fields(Namespace)]


def test_a_namespace_covers_every_part_that_must_agree():
    assert PARTS == [
        "model",
        "model_revision",
        "tokenizer",
        "tokenizer_revision",
        "kv_dtype",
        "cache_dtype",
        "quantization",
        "adapter",
        "rope",
        "tensor_parallel",
        "block_size",
        "cache_layout",
        "tenant",
        "template",
        "cache_salt",
    ]


@pytest.mark.parametrize("part", PARTS)
def test_changing_any_part_changes_the_key(part):
    base = Namespace.of(model="m")
    other = base.with_parts(**{part: 7 if part in ("tensor_parallel", "block_size") else "other"})
    assert base.key(b"s") != other.key(b"s")


@pytest.mark.parametrize("part", PARTS)
def test_an_unknown_part_has_no_key(part):
    incomplete = Namespace(**{**Namespace.of(model="m").to_dict(), part: None})
    assert incomplete.unknown_parts == (part,)
    with pytest.raises(NamespaceError, match=part):
        incomplete.key()


def test_the_key_depends_on_the_secret():
    namespace = Namespace.of(model="m")
    assert namespace.key(b"one") != namespace.key(b"two")


def test_parts_cannot_be_shifted_into_one_another():
    one = Namespace.of(model="m", tenant="a", template="bc")
    two = Namespace.of(model="m", tenant="ab", template="c")
    assert one.key() != two.key()


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"model": ""}, "namespace.model"),
        ({"model": 3}, "namespace.model"),
        ({"block_size": 0}, "namespace.block_size"),
        ({"tensor_parallel": "2"}, "namespace.tensor_parallel"),
    ],
)
def test_bad_parts_are_named(parts, said):
    with pytest.raises(NamespaceError, match=said):
        Namespace(**parts)


def test_an_unknown_part_name_is_refused():
    with pytest.raises(NamespaceError, match="colour"):
        Namespace.of(model="m", colour="red")
