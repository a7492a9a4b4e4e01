"""Promises: data is never code; nothing a caller says names a file."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from semblend.cli.serve import _default_temperature
from semblend.core.errors import StorageError, UnsupportedModelError
from semblend.core.settings import EmbedderKind, Settings
from semblend.engine.api import GenerationRequest, SamplingParams
from semblend.engine.engine import EmbeddedEngine
from semblend.engine.model import load_model
from semblend.engine.options import EngineOptions
from semblend.fleet.transport.folder import FolderStore
from tests.serve.support import MODEL

SOURCE = Path(__file__).parents[2] / "src"
UNSAFE_MODULES = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal"}
UNSAFE_MODULES |= {"shelve", "jsonpickle"}
UNSAFE_CALLS = {"eval", "exec", "compile", "__import__"}
UNSAFE_ATTRIBUTES = {("torch", "load"), ("torch", "save"), ("os", "system"), ("os", "popen")}
UNSAFE_ATTRIBUTES |= {("yaml", name) for name in ("load", "full_load", "unsafe_load")}
UNSAFE_FLAGS = {"allow_pickle", "shell"}


def trees() -> Iterator[tuple[Path, ast.AST]]:
    for path in sorted(SOURCE.rglob("*.py")):
        yield path, ast.parse(path.read_text(encoding="utf-8"))


def offences(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.split(".")[0] in UNSAFE_MODULES)
        elif isinstance(node, ast.ImportFrom):
            if (node.module or "").split(".")[0] in UNSAFE_MODULES:
                yield node.module or ""
        elif isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Name) and called.id in UNSAFE_CALLS:
                yield called.id
            if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
                pair = (called.value.id, called.attr)
                if pair in UNSAFE_ATTRIBUTES:
                    yield ".".join(pair)
            for word in node.keywords:
                constant = word.value.value if isinstance(word.value, ast.Constant) else None
                if word.arg in UNSAFE_FLAGS and constant is True:
                    yield f"{word.arg}=True"
                if word.arg == "trust_remote_code" and constant is True:
                    yield "trust_remote_code=True"


def test_nothing_is_pickled_evaluated_or_run_in_a_shell() -> None:
    found = [f"{path.relative_to(SOURCE)}: {what}" for path, t in trees() for what in offences(t)]
    assert found == []


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from pickle import loads",
        "import numpy as np; np.load('f', allow_pickle=True)",
        "import torch; torch.load('f')",
        "import yaml; yaml.load('a')",
        "eval('1')",
        "import subprocess; subprocess.run('ls', shell=True)",
        "AutoModel.from_pretrained('m', trust_remote_code=True)",
    ],
)
def test_the_rule_can_be_broken(code: str) -> None:
    assert list(offences(ast.parse(code)))


def test_weights_that_could_hold_programs_are_not_loaded(tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((MODEL / name).read_bytes())
    torch.save({"model.embed_tokens.weight": torch.zeros(2)}, tmp_path / "pytorch_model.bin")
    with pytest.raises(UnsupportedModelError, match="safetensors"):
        load_model(str(tmp_path), device="cpu")


@pytest.mark.parametrize(
    ("text", "temperature"),
    [
        ("[]", 1.0),
        ("[" * 50_000, 1.0),
        ('{"do_sample": false}', 0.0),
        ('{"temperature": "x"}', 1.0),
    ],
)
def test_a_hostile_generation_config_does_not_stop_a_server(
    tmp_path: Path, text: str, temperature: float
) -> None:
    (tmp_path / "generation_config.json").write_text(text)
    assert _default_temperature(str(tmp_path)) == temperature


@pytest.mark.parametrize("damage", ["truncated", "huge header", "not one"])
def test_a_damaged_model_is_refused_at_start(tmp_path: Path, damage: str) -> None:
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((MODEL / name).read_bytes())
    with (MODEL / "model.safetensors").open("rb") as file:
        start = file.read(4096)
    broken = {
        "truncated": start,
        "huge header": (2**62).to_bytes(8, "little") + start[8:],
        "not one": b"not a model" * 100,
    }
    (tmp_path / "model.safetensors").write_bytes(broken[damage])
    with pytest.raises(UnsupportedModelError):
        load_model(str(tmp_path), device="cpu")


@pytest.mark.parametrize(
    "name",
    [
        "../" * 8 + "etc/passwd",
        "/etc/passwd",
        "",
        "..",
        "0" * 63,
        "0" * 64 + "\n",
        "0" * 64 + "/..",
        "G" * 64,
        "\0" * 64,
    ],
)
def test_a_shared_store_knows_only_digests(tmp_path: Path, name: str) -> None:
    store = FolderStore(tmp_path / "store")
    for attempt in (lambda: store.put(name, [b"x"]), lambda: store.get(name)):
        with pytest.raises(StorageError):
            attempt()
    with pytest.raises(StorageError):
        store.remove(name)
    assert list((tmp_path / "store").iterdir()) == []


def test_no_tenant_template_salt_or_request_names_a_file(tmp_path: Path) -> None:
    hostile = "../../../../outside"
    folder = tmp_path / "deep" / "down" / "donors"
    settings = Settings(allow_uncertified=True, embedder=EmbedderKind.NONE, shadow_rate=0.0)
    options = EngineOptions(
        device="cpu",
        pool_bytes=32 * 2**20,
        host_donor_bytes=3 * 2**20,
        disk_donor_bytes=32 * 2**20,
        donor_folder=folder,
    )
    with EmbeddedEngine.load(str(MODEL), options=options, settings=settings) as engine:
        for number in range(3):
            request: Any = GenerationRequest(
                request_id=f"{hostile}{number}",
                # Nothing in common, so that all three are computed and kept.
                tokens=np.random.default_rng(number).integers(100, 8000, 200, dtype=np.int32),
                namespace=engine.namespace(tenant=hostile, template=hostile, cache_salt=hostile),
                sampling=SamplingParams(max_tokens=1),
            )
            engine.submit(request).result()
        engine.donors.wait()
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    kept = [path for path in written if path.suffix == ".kv"]
    assert kept
    assert all(path.parent == folder and len(path.stem) == 64 for path in kept)
    assert {path.parent for path in written} == {folder}
    assert all(path.stat().st_mode & 0o077 == 0 for path in (folder, *written))
