"""Every embedder keeps the same promises; the real models, offline."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semblend.core.errors import EmbedderError, MissingExtraError, SettingsError
from semblend.core.settings import EmbedderKind
from semblend.discovery.embedders import (
    EMBEDDERS,
    Embedder,
    embedder_or_fallback,
    make_embedder,
)
from semblend.discovery.embedders import model_files as model_files_module
from semblend.discovery.embedders.model_files import HUB_NAME, find_model, packaged_folder
from semblend.discovery.embedders.onnx import OnnxEmbedder
from semblend.discovery.embedders.onnx_export import export_onnx
from semblend.discovery.embedders.onnx_gpu import CUDA, OnnxGpuEmbedder

REAL = ["jaccard", "static", "minilm"]
OPTIONAL = {
    "huggingface_hub",
    "onnxruntime",
    "sentence_transformers",
    "tokenizers",
    "torch",
    "transformers",
    "usearch",
    "wordllama",
}

TRIPLES = [
    (
        "The harbour master closed the eastern pier after the storm damaged its pillars.",
        "After the storm damaged its pillars, the eastern pier was closed by the harbour master.",
        "Bread dough should rest for two hours before it goes into the oven.",
    ),
    (
        "Our quarterly report shows that revenue grew by nine percent in the northern region.",
        "In the northern region revenue grew nine percent, our report for the quarter shows.",
        "The orchestra tuned its instruments while the audience looked for their seats.",
    ),
    (
        "Patients who take the medicine at night sleep better and complain less of headaches.",
        "Taking the medicine at night, patients slept better and had fewer headaches.",
        "The compiler rejects a function whose return type does not match its declaration.",
    ),
]


@cache
def embedder(kind: str) -> Embedder:
    return make_embedder(kind)


@pytest.mark.parametrize("kind", REAL)
@pytest.mark.parametrize(("text", "paraphrase", "unrelated"), TRIPLES)
def test_a_paraphrase_is_closer_than_unrelated_text(kind, text, paraphrase, unrelated):
    one, two, other = embedder(kind).embed([text, paraphrase, unrelated])
    assert one @ two > 0.35
    assert one @ two > one @ other + 0.25


@pytest.mark.parametrize("kind", REAL)
def test_vectors_are_unit_rows_of_the_stated_dimension(kind):
    vectors = embedder(kind).embed(["one text", "another, longer text " * 50, "ünïcödé 漢字 🦀"])
    assert vectors.dtype == np.float32
    assert vectors.shape == (3, embedder(kind).dimension)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)
    assert embedder(kind).embed([]).shape == (0, embedder(kind).dimension)
    assert str(embedder(kind).dimension) in embedder(kind).identity


@pytest.mark.parametrize("kind", REAL)
def test_a_text_has_one_vector_whatever_is_embedded_with_it(kind):
    texts = [text for triple in TRIPLES for text in triple] + ["x", "word " * 180]
    together = embedder(kind).embed(texts)
    for text, vector in zip(texts, together, strict=True):
        np.testing.assert_allclose(embedder(kind).embed([text])[0], vector, atol=2e-6)


@pytest.mark.parametrize("kind", REAL)
def test_threads_get_the_vectors_of_their_own_texts(kind):
    texts = [f"thread {number} speaks of {word}" for number, word in enumerate("abcdefgh")]
    alone = embedder(kind).embed(texts)
    with ThreadPoolExecutor(4) as pool:
        each = list(pool.map(lambda text: embedder(kind).embed([text, text])[1], texts))
    np.testing.assert_allclose(np.stack(each), alone, atol=2e-6)


@pytest.mark.parametrize("kind", REAL)
@settings(max_examples=60, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs", "Cc", "Cf", "Cn", "Co"]), max_size=200))
def test_units_are_ordered_and_cover_every_visible_character(kind, text):
    units = embedder(kind).units(text)
    assert (units.costs >= 1).all()
    assert (units.ends > units.starts).all()
    assert (units.starts[1:] >= units.ends[:-1]).all()
    seen = np.zeros(len(text), dtype=bool)
    for start, end in zip(units.starts, units.ends, strict=True):
        seen[start:end] = True
    missed = [char for char, covered in zip(text, seen, strict=True) if not covered]
    # BERT's tokenizer strips accents that stand alone: they have no token of their own.
    assert [char for char in missed if char.isalnum() and char.isascii()] == []
    if kind == "jaccard":
        assert not "".join(missed).strip()


@pytest.mark.parametrize("kind", REAL)
def test_nothing_is_fetched_for_an_installed_model(kind, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    assert make_embedder(kind).embed(["offline"]).shape[0] == 1


def test_jaccard_cosine_estimates_the_set_cosine():
    rng = np.random.default_rng(0)
    errors = []
    for _ in range(40):
        shared, own, other = rng.integers(20, 200, 3)
        # Far-apart ids: pairs are then shared only inside the shared run.
        common = rng.integers(0, 2**31, shared)
        a = np.concatenate([common, rng.integers(0, 2**31, own)]).astype(np.int32)
        b = np.concatenate([common, rng.integers(0, 2**31, other)]).astype(np.int32)
        sets = [
            set(s.tolist()) | set(zip(s.tolist(), s.tolist()[1:], strict=False)) for s in (a, b)
        ]
        exact = len(sets[0] & sets[1]) / np.sqrt(len(sets[0]) * len(sets[1]))
        one, two = embedder("jaccard").embed_tokens([a, b])
        errors.append(float(one @ two) - exact)
    assert abs(np.mean(errors)) < 0.03
    assert np.std(errors) < 2 / np.sqrt(embedder("jaccard").dimension)


def test_a_text_and_its_reversal_are_not_alike_to_jaccard():
    words = TRIPLES[0][0].split()
    one, two = embedder("jaccard").embed([" ".join(words), " ".join(reversed(words))])
    assert one @ two < 0.75


def test_jaccard_vectors_are_equal_in_every_process():
    code = (
        "from semblend.discovery.embedders import make_embedder; import sys; "
        "sys.stdout.buffer.write(make_embedder('jaccard').embed(['Straße und Hafen']).tobytes())"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, check=True, env={"PYTHONHASHSEED": s}
        ).stdout
        for s in ("1", "2")
    }
    assert outputs == {embedder("jaccard").embed(["STRASSE und Hafen"]).tobytes()}


def test_importing_the_embedders_imports_no_optional_package():
    code = "import sys, semblend.discovery.embedders; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "semblend.discovery.embedders.minilm" in done.stdout.split()
    assert not OPTIONAL & set(done.stdout.split())


def test_every_kind_of_the_settings_can_be_made_by_name():
    assert set(EMBEDDERS) == {kind.value for kind in EmbedderKind}


def test_an_unknown_kind_is_refused_with_the_known_ones():
    for make in (make_embedder, embedder_or_fallback):
        with pytest.raises(SettingsError, match="minilm, static, jaccard, onnx_gpu, none"):
            make("word2vec")


@pytest.mark.parametrize(
    ("kind", "package", "extra"),
    [
        ("minilm", "sentence_transformers", "embedder"),
        ("static", "wordllama", "embedder"),
        ("static", "tokenizers", "embedder"),
        ("static", "safetensors.numpy", "embedder"),
        ("onnx_gpu", "onnxruntime", "onnx-gpu"),
    ],
)
def test_a_missing_package_is_named_with_its_extra_and_jaccard_steps_in(
    kind, package, extra, monkeypatch, caplog
):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"pip install '\.\[{extra}\]'"):
        make_embedder(kind)
    with caplog.at_level(logging.WARNING, logger="semblend.embedders"):
        stand_in = embedder_or_fallback(kind)
    assert stand_in.name == "jaccard"
    assert len(caplog.records) == 1
    assert kind in caplog.text
    assert f".[{extra}]" in caplog.text


def test_what_can_be_had_is_not_replaced(caplog):
    with caplog.at_level(logging.WARNING):
        assert embedder_or_fallback("static").name == "static"
        assert embedder_or_fallback("none").name == "none"
    assert caplog.records == []


@pytest.fixture(scope="module")
def onnx_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_onnx(tmp_path_factory.mktemp("onnx") / "minilm-onnx")


def test_minilm_as_onnx_gives_the_vectors_of_sentence_transformers(onnx_folder):
    onnx = make_embedder("minilm", str(onnx_folder))
    assert isinstance(onnx, OnnxEmbedder)
    texts = [text for triple in TRIPLES for text in triple]
    texts += ["", "漢字 [SEP] mixed", "word " * 400]
    np.testing.assert_allclose(onnx.embed(texts), embedder("minilm").embed(texts), atol=1e-5)
    assert onnx.window_tokens == embedder("minilm").window_tokens
    assert len(onnx.units(texts[0])) == len(embedder("minilm").units(texts[0]))


def test_onnx_gpu_runs_on_cuda_or_refuses_by_name(onnx_folder):
    import onnxruntime

    if CUDA in onnxruntime.get_available_providers():
        gpu = OnnxGpuEmbedder(str(onnx_folder))
        expected = embedder("minilm").embed([TRIPLES[0][0]])
        np.testing.assert_allclose(gpu.embed([TRIPLES[0][0]]), expected, atol=1e-3)
    else:
        with pytest.raises(EmbedderError, match=f"onnx_gpu: this onnxruntime has no {CUDA}"):
            make_embedder("onnx_gpu", str(onnx_folder))


def test_an_onnx_folder_that_is_broken_is_refused_by_name(onnx_folder, tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"not a graph")
    with pytest.raises(EmbedderError, match=r"none of tokenizer.json"):
        make_embedder("minilm", str(tmp_path))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(EmbedderError, match="not a tokenizer"):
        make_embedder("minilm", str(tmp_path))
    (tmp_path / "tokenizer.json").write_bytes((onnx_folder / "tokenizer.json").read_bytes())
    with pytest.raises(EmbedderError, match="cannot run it"):
        make_embedder("minilm", str(tmp_path))
    (tmp_path / "model.onnx").write_bytes((onnx_folder / "model.onnx").read_bytes())
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": null}')
    with pytest.raises(EmbedderError, match="max_seq_length"):
        make_embedder("minilm", str(tmp_path))


def test_models_are_looked_for_on_this_machine_first(tmp_path, monkeypatch):
    assert find_model() == packaged_folder()
    assert find_model(str(tmp_path)) == tmp_path
    assert find_model("intfloat/e5-small") == "intfloat/e5-small"
    for nowhere in ("./nowhere", "/nowhere/at/all", "a/b/c", "nowhere"):
        with pytest.raises(EmbedderError, match="neither a folder"):
            find_model(nowhere)
    monkeypatch.setattr(model_files_module, "PACKAGE", "no_such_package_is_installed")
    assert find_model() == HUB_NAME


@pytest.mark.parametrize("kind", ["minilm", "static"])
def test_a_model_that_cannot_be_fetched_is_a_typed_error(kind, monkeypatch, tmp_path):
    if kind == "minilm":
        (tmp_path / "config.json").write_text("{}")
        with pytest.raises(EmbedderError, match="could not load"):
            make_embedder("minilm", str(tmp_path))
    else:
        from semblend.discovery.embedders import static

        monkeypatch.setattr(static, "package_folder", lambda _name: tmp_path)
        with pytest.raises(EmbedderError, match="wordllama has no"):
            make_embedder("static")


def test_offline_a_hub_name_fails_with_what_was_looked_for(tmp_path):
    code = (
        "from semblend.discovery.embedders.model_files import find_file\n"
        "from semblend.core.errors import EmbedderError\n"
        "try: find_file('some/model', ('model.onnx',), purpose='a test', extra='embedder')\n"
        "except EmbedderError as error: print(error)"
    )
    environment = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert "a test: some/model has no model.onnx on this machine" in done.stdout


def test_exporting_needs_a_folder():
    with pytest.raises(EmbedderError, match="give the folder"):
        export_onnx(Path("unused"), "intfloat/e5-small")
