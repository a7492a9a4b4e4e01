"""Promises: every dependency is pinned, listed and looked up, and an audit that did not happen
does not look like a clean one."""

from __future__ import annotations

import re
from pathlib import Path

from scripts.audit_dependencies import audit, audit_of
from scripts.sbom import bill, closure

ROOT = Path(__file__).parents[2]
PIN = re.compile(r"^([A-Za-z0-9_.-]+)==([^\s;]+)$")


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    wanted = [line for line in lines if line and not line.startswith("#")]
    assert [line for line in wanted if not PIN.match(line)] == []
    matches = (PIN.match(line) for line in wanted)
    return {re.sub(r"[-_.]+", "-", m[1]).lower(): m[2] for m in matches if m}


def test_everything_the_server_needs_is_pinned() -> None:
    missing = set(closure("semblend", ["serve", "fleet"])) - set(pins()) - {"semblend"}
    # What pip itself brings, and what belongs to a GPU's build of torch, are not ours to pin.
    others = {"setuptools", "pip", "wheel"}
    assert {name for name in missing if not name.startswith("nvidia-")} - others == set()


def test_the_bill_lists_what_is_installed_and_is_the_same_twice() -> None:
    document = bill(["serve"])
    assert document == bill(["serve"])
    references = {component["bom-ref"] for component in document["components"]}
    references.add(document["metadata"]["component"]["bom-ref"])
    for entry in document["dependencies"]:
        assert entry["ref"] in references
        assert set(entry["dependsOn"]) <= references
    names = {component["name"] for component in document["components"]}
    assert {"torch", "fastapi", "numpy", "semblend-reference-27m"} <= names
    assert all("purl" in c or "hashes" in c for c in document["components"])


def test_a_package_that_was_not_looked_up_is_not_clean() -> None:
    package = {"name": "a", "version": "1", "vulns": []}
    hole = {"id": "CVE-1", "fix_versions": ["2"]}
    assert audit_of({"dependencies": [package]}).status == 0
    assert audit_of({"dependencies": [package, {**package, "skip_reason": "no"}]}).status == 3
    found = audit_of({"dependencies": [{**package, "vulns": [hole]}]})
    assert found.status == 1
    assert "fixed in 2" in found.vulnerable[0]


def test_an_audit_without_the_tool_says_so_of_every_package(tmp_path: Path) -> None:
    pinned = tmp_path / "pins.txt"
    pinned.write_text("# why\none==1\ntwo==2\n")
    audited = audit(pinned, timeout_s=0.001)
    assert audited.status == 3
    assert len(audited.unknown) == 2
