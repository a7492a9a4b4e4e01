"""Tokenizers: the built-in one never changes, any Hugging Face one works, errors say what to do."""

import hashlib
from pathlib import Path

import pytest

from sembench.errors import TokenizerError
from sembench.tokenizers import STABLE_REGEX, StableRegexTokenizer, load_tokenizer

REFERENCE = Path(__file__).parents[2] / "models" / "semblend-reference-27m"


def naive_id(word):
    return int.from_bytes(hashlib.sha256(word.encode()).digest()[:4], "little") & 0x7FFFFFFF


def test_the_built_in_tokenizer_follows_the_public_formula():
    ids = StableRegexTokenizer().encode("Hello, wörld_2!\n x")
    assert ids.tolist() == [naive_id(word) for word in ("hello", ",", "wörld_2", "!", "x")]
    assert ids.dtype == "uint32"


def test_the_built_in_tokenizer_ignores_case_and_space_and_takes_empty_text():
    tokenizer = StableRegexTokenizer()
    assert tokenizer.encode("One  two").tolist() == tokenizer.encode("oNE\ttwo").tolist()
    assert tokenizer.encode("").tolist() == []


@pytest.mark.parametrize("name", [None, "", STABLE_REGEX])
def test_the_built_in_tokenizer_is_the_default(name):
    assert load_tokenizer(name).name == STABLE_REGEX


@pytest.mark.parametrize("path", [REFERENCE, REFERENCE / "tokenizer.json"])
def test_a_local_tokenizer_encodes_as_transformers_does(path):
    transformers = pytest.importorskip("transformers")
    text = "The harbour log says 17 crates, nothing more.\n\nQuestion: which?"
    expected = transformers.AutoTokenizer.from_pretrained(REFERENCE)(
        text, add_special_tokens=False
    )["input_ids"]
    assert load_tokenizer(str(path)).encode(text).tolist() == expected


def test_special_tokens_padding_and_truncation_stay_out(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    inner = tokenizers.Tokenizer.from_file(str(REFERENCE / "tokenizer.json"))
    plain = inner.encode("a b c", add_special_tokens=False).ids
    inner.enable_truncation(max_length=2)
    inner.enable_padding(length=9)
    inner.save(str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(str(tmp_path)).encode("a b c").tolist() == plain


def test_a_tokenizer_that_is_not_there_says_what_would_be_right(tmp_path):
    with pytest.raises(TokenizerError, match="is not a file or a folder"):
        load_tokenizer(str(tmp_path / "none"))
    (tmp_path / "tokenizer.json").write_text("{}", encoding="utf-8")
    with pytest.raises(TokenizerError, match="cannot be read"):
        load_tokenizer(str(tmp_path))
