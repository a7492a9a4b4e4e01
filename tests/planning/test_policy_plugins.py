"""A policy of somebody else's distribution works, and a broken one costs nothing but itself."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from semblend.planning.policies.base import known_policies

SOURCE = Path(__file__).resolve().parents[2] / "src"
POLICY = '''
from dataclasses import dataclass
from semblend.core.plan import Hole
from semblend.planning.policies.base import RecomputePolicy, RecomputeRequest, register_policy

@register_policy("span_middle")
@dataclass(frozen=True, slots=True)
class SpanMiddle(RecomputePolicy):
    """The middle of every span."""
    grid = ("span_middle(4)",)
    tokens: int = 8

    def runs(self, request: RecomputeRequest) -> list[Hole]:
        half = self.tokens // 2
        middles = [span.target_start + span.length // 2 for span in request.spans]
        return [Hole(max(0, middle - half), middle + half) for middle in middles]
'''
BROKEN = {
    "raises": POLICY + "\nraise RuntimeError('half way')\n",
    "leaves the process": "import sys\nsys.exit(3)\n",
    "is not Python": "def :\n",
    "needs what is not there": "import no_such_package\n",
    "takes a name that is taken": POLICY.replace("span_middle", "span_head"),
    "replaces a policy": POLICY
    + "\nfrom semblend.planning.policies.base import POLICIES\nPOLICIES['none'] = SpanMiddle\n",
    "removes a policy": POLICY
    + "\nfrom semblend.planning.policies.base import POLICIES\ndel POLICIES['none']\n",
    "is no dataclass": POLICY.replace("@dataclass(frozen=True, slots=True)\n", ""),
    "is not frozen": POLICY.replace("frozen=True, ", ""),
    "decides itself whether it is probed": POLICY + "\nSpanMiddle.dynamic = True\n",
    "names a candidate nobody can read": POLICY.replace(
        "    tokens: int", '    candidates = ("span_muddle(4)",)\n    tokens: int'
    ),
    "has no runs": POLICY.split("    def runs")[0],
    "registers something else": (
        "from semblend.planning.policies.base import register_policy\n"
        "register_policy('thing')(type('Thing', (), {}))\n"
    ),
    "has a grid nobody can read": POLICY.replace('"span_middle(4)"', '"span_muddle(4)"'),
    "has a name nobody can write": POLICY.replace('policy("span_middle")', 'policy("span-middle")'),
    "registers nothing": "import semblend\n",
}


def install(site, *, name="their-policies", version="1.0", text=POLICY, value=None):
    """A distribution as pip leaves it: a module, and a dist-info folder with an entry point."""
    module = name.replace("-", "_")
    (site / f"{module}.py").write_text(text, encoding="utf-8")
    folder = site / f"{module}-{version}.dist-info"
    folder.mkdir()
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    (folder / "METADATA").write_text(metadata, encoding="utf-8")
    points = f"[semblend.policies]\n{module} = {value or module}\n"
    (folder / "entry_points.txt").write_text(points, encoding="utf-8")


def run(site, code):
    """Run in a fresh process, as an engine's: (what it printed, what it warned of)."""
    done = subprocess.run(
        [sys.executable, "-c", "import logging; logging.basicConfig()\n" + code],
        env={**os.environ, "PYTHONPATH": f"{site}:{SOURCE}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), [line for line in done.stderr.splitlines() if "WARNING" in line]


KNOWN = """
import json
from semblend.planning.policies.base import known_policies
known_policies()
print(json.dumps({name: cls.__module__ for name, cls in known_policies().items()}))
"""
PLAN = """
from semblend import Namespace, SemBlendPipeline, Settings
policy = "span_middle(6) + none"
settings = Settings(embedder="none", recompute_policy=policy, allow_uncertified=True)
pipeline, namespace = SemBlendPipeline(settings), Namespace.of(model="m", tenant="t")
document = list(range(1000, 1400))
pipeline.register_donor("d", document, namespace)
plan = pipeline.plan([1, 2, 3, *document, 4], namespace)
print(plan.policy, [(hole.start, hole.end) for hole in plan.recompute])
"""


@pytest.mark.parametrize("value", ["their_policies", "their_policies:SpanMiddle"])
def test_an_installed_distributions_policy_plans_without_a_fork(tmp_path, value):
    install(tmp_path, value=value)
    said, warned = run(tmp_path, PLAN)
    policy, _, runs = said.partition(" [")
    assert policy == "span_middle(6) + none"
    assert runs.count("(") == 1
    assert warned == []


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_plug_in_is_one_warning_and_its_policies_are_unknown(tmp_path, fault):
    install(tmp_path, text=BROKEN[fault])
    said, warned = run(tmp_path, KNOWN)
    ours = {name: cls.__module__ for name, cls in known_policies().items()}
    assert json.loads(said) == ours
    assert len(warned) == 1
    assert "their-policies 1.0" in warned[0]


def test_what_a_refused_plug_in_had_read_is_not_kept(tmp_path):
    used = "\nfrom semblend.planning.policies.base import policy_from_spec\n"
    used += "assert policy_from_spec('span_middle(6)')\nraise RuntimeError('half way')\n"
    install(tmp_path, text=POLICY + used)
    code = """
from semblend.core.errors import SettingsError
from semblend.planning.policies.base import policy_from_spec
try:
    print(policy_from_spec("span_middle(6)"))
except SettingsError:
    print("unknown")
"""
    assert run(tmp_path, code)[0] == "unknown"


def test_a_broken_plug_in_does_not_take_another_with_it(tmp_path):
    install(tmp_path, name="a-broken-one", text="1 / 0\n")
    install(tmp_path, name="their-policies")
    install(tmp_path, name="z-missing", value="no_such_module")
    said, warned = run(tmp_path, KNOWN)
    assert "span_middle" in json.loads(said)
    assert len(warned) == 2


def test_two_entry_points_may_name_one_module(tmp_path):
    install(tmp_path)
    points = tmp_path / "their_policies-1.0.dist-info" / "entry_points.txt"
    points.write_text(points.read_text() + "again = their_policies:SpanMiddle\n")
    said, warned = run(tmp_path, KNOWN)
    assert "span_middle" in json.loads(said)
    assert warned == []


def test_threads_that_ask_at_once_all_see_every_policy(tmp_path):
    install(tmp_path)
    code = """
import threading
from semblend.planning.policies.base import policy_from_spec
seen = []
threads = [threading.Thread(target=lambda: seen.append(policy_from_spec("span_middle(2)").spec))
           for _ in range(8)]
[thread.start() for thread in threads]; [thread.join() for thread in threads]
print(seen == ["span_middle(2)"] * 8)
"""
    assert run(tmp_path, code) == ("True", [])


def test_a_plug_in_may_use_our_policies_while_it_is_imported(tmp_path):
    text = "from semblend.planning.policies.base import policy_from_spec\n"
    install(tmp_path, text=text + "assert policy_from_spec('span_head(4)')\n" + POLICY)
    said, warned = run(tmp_path, KNOWN)
    assert "span_middle" in json.loads(said)
    assert warned == []


CERTIFIED = """
import sys
from datetime import UTC, datetime
from tests.certificates import certificate_of
from semblend.planning.certificates import MEASUREMENT_VERSION, plugin_entries
from semblend.planning.policies.base import policy_from_spec
spec = "budget(span_middle(4) + none, 0.2)"
policy_from_spec(spec)
print(plugin_entries(spec))
for stated in ({}, {"plug-in their-policies": "1.0"}, {"plug-in their-policies": "1.1"}):
    versions = {"measurement": str(MEASUREMENT_VERSION), **stated}
    certificate = certificate_of("f" * 32, policy=spec, versions=versions)
    print(certificate.objection(dtype="float32", now=datetime.now(UTC)) is None)
"""


def test_a_certificate_holds_for_the_version_of_the_plug_in_it_was_measured_with(tmp_path):
    install(tmp_path, version="1.0")
    code = f"import sys; sys.path.append({str(SOURCE.parent)!r})\n" + CERTIFIED
    said, _ = run(tmp_path, code)
    assert said.splitlines() == ["{'plug-in their-policies': '1.0'}", "False", "True", "False"]


def test_a_certificate_of_a_plug_in_that_is_gone_is_none(tmp_path):
    code = f"import sys; sys.path.append({str(SOURCE.parent)!r})\n" + (
        "from tests.certificates import certificate_of\n"
        "from semblend.planning.certificates import examined\n"
        "import pathlib\n"
        f"path = pathlib.Path({str(tmp_path)!r}) / 'c.json'\n"
        "path.write_text(certificate_of('f' * 32, policy='span_middle(4)').to_json())\n"
        "(found,) = examined([path]); print(found.certificate, found.detail)\n"
    )
    said, _ = run(tmp_path, code)
    assert said.startswith("None not a certificate: recompute policy 'span_middle(4)'")


def test_the_page_about_plug_ins_holds_one_that_works(tmp_path):
    page = (SOURCE.parent / "docs" / "policies.md").read_text(encoding="utf-8")
    text = page.split("```python\n# my_policies.py\n")[1].split("```")[0]
    stated = tomllib.loads(page.split("```toml\n")[1].split("```")[0])["project"]
    ((_, value),) = stated["entry-points"]["semblend.policies"].items()
    install(tmp_path, name=stated["name"], version=stated["version"], text=text, value=value)
    said, warned = run(tmp_path, PLAN)
    assert said.startswith("span_middle(6) + none [(")
    assert warned == []
