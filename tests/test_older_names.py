"""Import paths of the older packages still work, and say where their contents are now."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import semblend.core.namespace
import semblend.core.outcomes
import semblend.core.plan
import semblend.integration.modes
import semblend.integration.provider
import semblend.integration.sglang.launcher
import semblend.integration.vllm.namespaces
import semblend.integration.vllm.options
import semblend.pipeline

CONNECTOR = "semblend_vllm_connector"
OLDER = {
    "semblend.integration.sglang.launch_semblend_sglang": {
        "main": semblend.integration.sglang.launcher.run,
        "prepare": semblend.integration.sglang.launcher.prepare,
    },
    f"{CONNECTOR}.config": {
        "ConnectorOptions": semblend.integration.vllm.options.ConnectorOptions,
        "Settings": semblend.Settings,
    },
    f"{CONNECTOR}.namespace": {
        "of_request": semblend.integration.vllm.namespaces.of_request,
        "Namespace": semblend.core.namespace.Namespace,
    },
    f"{CONNECTOR}.provider": {"Provider": semblend.integration.modes.Provider},
    f"{CONNECTOR}.providers": {"SemBlendPipeline": semblend.pipeline.SemBlendPipeline},
    f"{CONNECTOR}.providers.semblend": {"SemBlendPipeline": semblend.pipeline.SemBlendPipeline},
    "semblend.integration.sglang.provider": {
        "SemBlendProvider": semblend.integration.provider.SemBlendProvider,
    },
    f"{CONNECTOR}.types": {
        "Plan": semblend.core.plan.Plan,
        "DeclineReason": semblend.core.outcomes.DeclineReason,
        "Mode": semblend.integration.modes.Mode,
    },
}
NEEDING_AN_ENGINE = {
    "semblend.integration.sglang.radix_backend": "semblend.integration.sglang.radix_cache",
    "semblend.integration.vllm.model_runner_hook": "semblend.integration.vllm.worker",
}


def imported(name):
    """Import it as if for the first time, with what is warned about."""
    for known in [known for known in sys.modules if known == name or known.startswith(f"{name}.")]:
        del sys.modules[known]
    with pytest.warns(DeprecationWarning, match="is an older name") as seen:
        module = importlib.import_module(name)
    return module, [str(warning.message) for warning in seen]


@pytest.mark.parametrize("name", OLDER)
def test_an_older_module_warns_and_gives_what_is_now_elsewhere(name):
    module, said = imported(name)
    # A package that is older itself warns, too, on the way to the module.
    assert said[-1].startswith(f"{name} is an older name; import from semblend.")
    for attribute, now in OLDER[name].items():
        assert getattr(module, attribute) is now


@pytest.mark.parametrize("name", NEEDING_AN_ENGINE)
def test_importing_an_older_name_needs_no_engine(name):
    _, (said,) = imported(name)
    assert said.startswith(f"{name} is an older name; import from {NEEDING_AN_ENGINE[name]} ")


def test_a_name_without_a_successor_is_an_error_that_says_where_to_look():
    module, _ = imported(f"{CONNECTOR}.types")
    with pytest.raises(AttributeError, match=r"types\.Gone no longer exists .*docs/switching"):
        _ = module.Gone


def test_the_warning_points_at_the_line_that_imports(tmp_path):
    script = tmp_path / "mine.py"
    script.write_text(f"# a comment\nfrom {CONNECTOR}.types import Plan\n")
    said = subprocess.run(
        [sys.executable, script], env={"PYTHONPATH": ":".join(sys.path)}, capture_output=True
    ).stderr.decode()
    assert f"{script}:2: DeprecationWarning: {CONNECTOR}.types is an older name" in said


def test_nothing_of_ours_imports_an_older_name():
    code = "import semblend_vllm_connector, semblend.integration.sglang.launcher, semblend.cli.main"
    older = [*OLDER, *NEEDING_AN_ENGINE]
    check = f"{code}; import sys; print([n for n in {older!r} if n in sys.modules])"
    said = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, check=True
    ).stdout
    assert said.strip() == "[]"
