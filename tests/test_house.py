"""The house rules: imports point down, the surface is as written, settings are documented."""

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import semblend
from semblend.cli.settings import settings_table_markdown

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src"

# A package may import those of a smaller number, and itself.
FLOORS = {
    "semblend.core": 0,
    "semblend.discovery": 1,
    "semblend.kv": 1,
    "semblend.planning": 2,
    "semblend.pipeline": 3,
    "semblend.engine": 4,
    "semblend.integration": 5,
    "semblend.fleet": 4,
    "semblend.quality": 5,
    "semblend.serve": 6,
    "semblend.terminal": 6,
    "semblend.bench": 7,
    "semblend.demo": 7,
    "semblend.cli": 8,
}
HEAVY = {"torch", "transformers", "triton", "fastapi", "uvicorn", "sentence_transformers"}
LIGHT_PACKAGES = {"core", "discovery", "planning"}


def modules():
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        yield ".".join(part for part in parts if part != "__init__"), path


def imports(path, *, top_level_only=False):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = tree.body if top_level_only else ast.walk(tree)
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            yield node.module


def package_of(name):
    return ".".join(name.split(".")[:2])


@pytest.mark.parametrize(("name", "path"), list(modules()), ids=lambda value: str(value))
def test_imports_point_down(name, path):
    mine = package_of(name)
    for imported in imports(path):
        top = imported.split(".")[0]
        if name.startswith("semblend.") and top in ("sembench", "semblend_vllm_connector"):
            pytest.fail(f"{name} imports {imported}")
        theirs = package_of(imported)
        if mine in FLOORS and theirs in FLOORS and mine != theirs:
            assert FLOORS[theirs] < FLOORS[mine], f"{name} imports {imported}"


def test_sembench_knows_semblend_in_one_file():
    knowing = [
        name
        for name, path in modules()
        if name.startswith("sembench")
        and any(i == "semblend" or i.startswith("semblend.") for i in imports(path))
    ]
    assert knowing == ["sembench.planners.semblend_planner"]


@pytest.mark.parametrize(
    ("name", "path"),
    [(n, p) for n, p in modules() if n.split(".")[1:2] and n.split(".")[1] in LIGHT_PACKAGES],
    ids=lambda value: str(value),
)
def test_the_light_core_imports_nothing_heavy(name, path):
    tops = {i.split(".")[0] for i in imports(path, top_level_only=True)}
    assert not tops & HEAVY


def test_importing_the_facade_does_not_load_torch():
    code = "import sys, semblend; semblend.SemBlendPipeline; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("part", ["sglang.fleet", "sglang.starting", "trtllm.launcher"])
def test_what_runs_in_every_process_of_an_engine_does_not_load_torch(part):
    name = f"semblend.integration.{part}"
    subprocess.run(
        [sys.executable, "-c", f"import sys, {name}; assert 'torch' not in sys.modules"], check=True
    )


def test_the_public_surface_is_what_all_names():
    assert sorted(semblend.__all__) == semblend.__all__
    for name in semblend.__all__:
        assert getattr(semblend, name).__doc__, f"{name} is documented"
    with pytest.raises(AttributeError):
        _ = semblend.nothing_of_this_name


def test_every_setting_is_documented_as_it_is():
    documented = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    assert settings_table_markdown() in documented


def test_every_module_says_what_it_is_for():
    for name, path in modules():
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
        assert len(docstring or "") > 10, name


FOR_TESTS_ALONE = {
    "options_table": "what tests compare the tables in docs with",
    "models_table": "what tests compare the tables in docs with",
}


def is_torchs(node):
    """Whether its decorators only switch gradients off."""
    return all(ast.unparse(each).startswith("torch.") for each in node.decorator_list)


def public_names(tree):
    """Names at the top, and public methods of classes that have nobody else's to fulfil."""
    for node in tree.body:
        named = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        if named and (not node.decorator_list or is_value(node) or is_torchs(node)):
            yield node.name
        if isinstance(node, ast.ClassDef) and not node.bases and not node.name.startswith("_"):
            methods = (each for each in node.body if isinstance(each, ast.FunctionDef))
            yield from (each.name for each in methods if not each.name.startswith("_"))
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))


def is_value(node):
    """Whether its one decorator makes it a dataclass: any other may register it somewhere."""
    made = [ast.unparse(decorator) for decorator in node.decorator_list]
    return all(text.startswith("dataclass") for text in made)


def used_words(tree):
    """Names that are read, attributes, and words of strings that are no prose."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from re.findall(r"\w+", node.value) if len(node.value) < 200 else ()


def test_nothing_is_there_for_tests_alone():
    """A name of ours is used by the product or a benchmark, or documented for those who call it."""
    used = set(FOR_TESTS_ALONE)
    for folder in ("src", "benchmarks", "examples", "scripts"):
        for path in (ROOT / folder).rglob("*.py"):
            used.update(used_words(ast.parse(path.read_text(encoding="utf-8"))))
    for path in (ROOT / "pyproject.toml", ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        used.update(re.findall(r"\w+", path.read_text(encoding="utf-8")))
    unused = [
        f"{module}.{name}"
        for module, path in modules()
        for name in public_names(ast.parse(path.read_text(encoding="utf-8")))
        if name not in used and not name.startswith("__")
    ]
    assert not unused


PACKAGES = "|".join(package.partition(".")[2] for package in FLOORS)
DOTTED = re.compile(rf"`(?:semblend\.)?((?:{PACKAGES})\.[a-z_][\w.]*)`")
FILE = re.compile(
    r"\b(?:docs|tests|benchmarks|examples|scripts|deploy|src)/[\w/.-]+\.(?:py|md|sh|json|toml|ya?ml)\b"
)


def is_there(dotted):
    """Whether a module, or a name in one, is there: `engine.support`, `kv.layout.by_slot`."""
    place = SOURCE / "semblend"
    for part, *rest in (dotted.split(".")[at:] for at in range(dotted.count(".") + 1)):
        if (place / part).is_dir():
            place /= part
            continue
        module = place / f"{part}.py"
        if not module.is_file():
            return False
        return not rest or bool(re.search(rf"\b{rest[0]}\b", module.read_text(encoding="utf-8")))
    return True


def test_modules_and_files_that_are_named_exist():
    texts = [path for _, path in modules()]
    texts += [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    missing = []
    for path in texts:
        text = path.read_text(encoding="utf-8")
        names = {name for name in DOTTED.findall(text) if not is_there(name.removesuffix(".py"))}
        names |= {name for name in FILE.findall(text) if not (ROOT / name).exists()}
        missing += [f"{path.relative_to(ROOT)}: {name}" for name in sorted(names)]
    assert not missing


def test_policies_are_all_documented():
    concepts = (ROOT / "docs" / "concepts.md").read_text(encoding="utf-8")
    known = importlib.import_module("semblend.planning.policies.base").known_policies()
    missing = [name for name in known if f"`{name}" not in concepts]
    assert not missing


# One word, one idea: the names of classes and files.
CLASSES_DEFINED_TWICE = {
    "ConnectorMeta": "one per engine, for the same job",
    "ConnectorOptions": "one per engine, for the same job",
    "Donor": "SemBench: a prompt that is to be a donor; SemBlend: one that is",
    "Fact": "SemBench writes facts of its own: it imports nothing of SemBlend's",
    "Limits": "SemBench: public, how long stories get; SemBlend: how far from cold",
    "MissingExtraError": "one per distribution",
    "NestedPass": "one per engine, for the same job",
    "Offer": "a prompt that may become a donor, where SGLang's tree holds it, and elsewhere",
    "Planner": "SemBench's interface for anybody's planner; SemBlend's planner",
    "Reuse": "SemBench: public, what there is to reuse in a transform's items",
    "SchedulerSide": "one per way an engine schedules: the shared one, and engines' own",
    "SetupQuestion": "one per engine, for the same job",
    "ToolCall": "OpenAI's tool call, in SemBench's messages and the server's",
}
"""Two classes may share a name where they are the same idea in two places. Say which."""

FILE_NAMES_REPEATED = {
    "app.py": "the web application of a server, and of the gateway",
    "base.py": "the interface that its folder's other modules implement",
    "loading.py": "from a name to the thing it names",
    "none.py": "the choice of nothing, in a folder of choices",
    "options.py": "what can be set about its folder",
    "pass_proof.py": "the shared part, and an engine's own for the same job",
    "port.py": "what an engine offers a side: its scheduler's, its worker's",
    "setup.py": "what a side must know at start; in engines' folders: where it comes from",
    "side.py": "the two sides of every adapter",
    "support.py": "what is supported: models by the engine, engines by adapters",
}
"""A file's name may repeat where the folder says the rest. Say how."""

ENGINE_FOLDERS = ("vllm", "sglang", "trtllm", "embedded", "dynamo")


def places_of_classes():
    places = {}
    for module, path in modules():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(module)
    return places


def place_of(module):
    """Where a file's name counts: engines' folders and what they share count as one place."""
    parts = module.split(".")
    if parts[1:2] != ["integration"] or (len(parts) > 3 and parts[2] not in ENGINE_FOLDERS):
        return module
    return "semblend.integration"


def places_of_files():
    """By distribution and file name; a command is called as its users call it."""
    places = {}
    for module, path in modules():
        parts = module.split(".")
        if path.stem not in ("__init__", "__main__") and "cli" not in parts[:-1]:
            places.setdefault((parts[0], path.name), set()).add(place_of(module))
    return places


def test_a_class_name_stands_for_one_idea():
    twice = {name: where for name, where in places_of_classes().items() if len(where) > 1}
    new = {name: where for name, where in twice.items() if name not in CLASSES_DEFINED_TWICE}
    assert not new, "rename one, or say in CLASSES_DEFINED_TWICE why they are one idea"
    assert set(CLASSES_DEFINED_TWICE) <= set(twice), "no longer defined twice: delete the entry"


def test_a_file_name_stands_for_one_job():
    repeated = {name: where for (_, name), where in places_of_files().items() if len(where) > 1}
    new = {name: where for name, where in repeated.items() if name not in FILE_NAMES_REPEATED}
    assert not new, "rename one, or say in FILE_NAMES_REPEATED what the folders say"
    assert set(FILE_NAMES_REPEATED) <= set(repeated), "no longer repeated: delete the entry"


COMMANDS_IMPORTED = {
    "sembench.cli.main",
    "sembench.cli.summarize_engine_events",
    "semblend.cli.certify_until_sure",
    "semblend.cli.doctor_sglang",
    "semblend.cli.doctor_trtllm",
    "semblend.cli.doctor_vllm",
    "semblend.cli.serve",
}
"""Commands that others than `main` import: groups their members, commands what they share."""


def test_the_command_line_folders_hold_commands_alone():
    """A module there that is imported by anything but `main` is a helper: it belongs elsewhere."""
    imported = {
        name
        for module, path in modules()
        if not module.endswith(".cli.main")
        for name in imports(path)
        if re.match(r"sem(blend|bench)\.cli\.", name)
    }
    assert imported <= COMMANDS_IMPORTED
