"""Every install command in the repository works for someone who has a clone or its wheel.

The name `semblend` on the package index is another project's: no line may ask an index for it.
"""

import ast
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import InvalidRequirement, Requirement

from sembench.errors import MissingExtraError as BenchMissingExtraError
from semblend import __version__
from semblend.core.errors import MissingExtraError
from semblend.integration.findings import not_installed

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = set(PROJECT["optional-dependencies"])
SECOND = "packaging/semblend-vllm-connector/pyproject.toml"
SECOND_EXTRAS = set(
    tomllib.loads((ROOT / SECOND).read_text(encoding="utf-8"))["project"]["optional-dependencies"]
)
INSTALL = re.compile(r"\bpip3? install((?:\\\n|[^\n`&|;#])*)")
TEXT = {".md", ".py", ".sh", ".toml", ".yaml", ".yml", ".txt", ".json", ".tpl", ".cfg", ""}
SKIPPED = {"tests/test_install_lines.py"}


def tracked():
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    for name in listed.stdout.splitlines():
        path = ROOT / name
        wanted = path.suffix in TEXT or path.name.startswith("Dockerfile")
        if wanted and name not in SKIPPED and "/corpus/" not in name and path.is_file():
            yield path


def install_lines():
    """(file, arguments) of every `pip install` there is, prose and code alike."""
    for path in tracked():
        for found in INSTALL.finditer(path.read_text(encoding="utf-8")):
            yield path.relative_to(ROOT).as_posix(), found[1].replace("\\\n", " ")


def words(arguments):
    """The arguments of a command that may stand inside a sentence or a string."""
    text = re.sub(r"\$\(echo ([^)]*)\)", r"\1", arguments)  # a path the shell expands
    quoted = re.findall(r"'([^']*)'|\"([^\"]*)\"|(\S+)", text)
    return [(one or two or three).rstrip(",.)") or "." for one, two, three in quoted]


def objection(arguments):
    """Why this command would not install what it says; empty where it would."""
    for word in words(arguments):
        extras = re.search(r"\[([^\]]*)\]$", word)
        target = word[: extras.start()] if extras else word
        if target == "." or target.endswith(".whl"):
            known = SECOND_EXTRAS if "semblend_vllm_connector" in target else EXTRAS
            unknown = set(extras[1].split(",")) - known if extras else set()
            if unknown and "{" not in str(extras[1]):
                return f"{word}: no extra {', '.join(unknown)}"
            version = re.search(r"semblend-(\d[^-]*)-", target)
            if version and version[1] != __version__:
                return f"{word}: the wheel is of version {__version__}"
            continue
        try:
            if Requirement(word).name.lower() == "semblend":
                return f"{word}: the package index has another project of this name"
        except InvalidRequirement:
            continue  # an option, a path or the sentence's next word
    return ""


def test_no_install_line_asks_an_index_for_our_name():
    lines = list(install_lines())
    assert len({file for file, _ in lines}) > 12, "the lines were found"
    wrong = [
        f"{file}: pip install{text}: {said}" for file, text in lines if (said := objection(text))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "arguments",
    [
        " semblend",
        " 'semblend[serve]'",
        ' "semblend[vllm]>=0.4"',
        " --upgrade semblend==0.4.0",
        " SemBlend[serve].",
        " '.[server]'",
        " 'dist/semblend-0.3.0-py3-none-any.whl[serve]'",
    ],
)
def test_lines_that_would_fail_are_told(arguments):
    assert objection(arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        " .",
        " --no-deps --editable .",
        " '.[serve,fleet]' in a clone",
        f" 'semblend-{__version__}-py3-none-any.whl[serve]'",
        ' "$(echo /opt/wheel/semblend-*.whl)[serve,fleet]"',
        " --quiet rapidfuzz xxhash",
    ],
)
def test_lines_that_work_are_not(arguments):
    assert objection(arguments) == ""


def test_no_page_speaks_of_our_extras_by_the_name_on_the_index():
    # The project's own extras name each other so, which pip resolves to the file it was given.
    allowed = {"pyproject.toml", SECOND, "tests/test_connector_wheel.py"}
    for path in tracked():
        name = path.relative_to(ROOT).as_posix()
        if name not in allowed:
            found = re.search(r"(?<![.\w])semblend\[[a-z{]", path.read_text(encoding="utf-8"))
            assert found is None, name


@pytest.mark.parametrize("extra", sorted(EXTRAS))
def test_errors_name_commands_that_work(extra):
    error = MissingExtraError(package="p", extra=extra, purpose="q")
    bench = BenchMissingExtraError(package="p", extra=extra, purpose="q")
    for said in (str(error), str(bench), not_installed("engine", extra=extra).detail):
        commands = INSTALL.findall(said)
        assert f".[{extra}]" in said
        assert commands
        assert not any(map(objection, commands))


def test_every_extra_the_code_asks_for_exists():
    asked = {}
    for path in (*(ROOT / "src").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            called = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if called not in ("MissingExtraError", "not_installed", "install_command"):
                continue
            values = [word.value for word in node.keywords if word.arg == "extra"]
            values += node.args if called == "install_command" else []
            for value in values:
                if isinstance(value, ast.Constant):
                    asked[value.value] = path
    assert len(asked) > 6
    for extras, path in asked.items():
        assert set(extras.split(",")) <= EXTRAS, path


def test_make_wheel_builds_what_the_documentation_names():
    said = subprocess.run(
        ["make", "--dry-run", "wheel", "PYTHON=python3"], cwd=ROOT, capture_output=True, text=True
    )
    assert said.returncode == 0, said.stderr
    lines = said.stdout.replace("\\\n", " ").splitlines()
    build = next(line for line in lines if "pip wheel" in line)
    words = shlex.split(build)
    assert {"--no-deps", "."} <= set(words)
    assert words[words.index("--wheel-dir") + 1] == "dist"
