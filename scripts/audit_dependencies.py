"""Audits every pinned dependency for known vulnerabilities: `python scripts/audit_dependencies.py`.

Asks pip-audit (from the Python Packaging Authority; `pip install pip-audit`) about
constraints.txt. Only packages that were really looked up count as clean. If the database cannot be
reached or does not know a package, that is reported as a separate outcome.

Exit status: 0 if all were looked up and none is vulnerable, 1 if some are vulnerable, 3 if some
could not be looked up (0 with --accept-unknown, which still reports them).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class DependencyAudit:
    """What is known about the pinned packages."""

    clean: tuple[str, ...]
    vulnerable: tuple[str, ...]
    unknown: tuple[str, ...]

    @property
    def status(self) -> int:
        """The exit status."""
        if self.vulnerable:
            return 1
        return 3 if self.unknown else 0


def audit_of(report: dict[str, Any]) -> DependencyAudit:
    """Sort pip-audit's JSON report; a skipped package does not count as clean."""
    clean, vulnerable, unknown = [], [], []
    for package in report.get("dependencies", []):
        name = f"{package['name']} {package.get('version', '?')}"
        if package.get("skip_reason"):
            unknown.append(f"{name}: {package['skip_reason']}")
        elif package.get("vulns"):
            ids = ", ".join(
                f"{v['id']} (fixed in {', '.join(v.get('fix_versions', [])) or 'no release'})"
                for v in package["vulns"]
            )
            vulnerable.append(f"{name}: {ids}")
        else:
            clean.append(name)
    return DependencyAudit(clean=tuple(clean), vulnerable=tuple(vulnerable), unknown=tuple(unknown))


def audit(pins: Path, timeout_s: float) -> DependencyAudit:
    """Ask pip-audit; if it cannot answer, every package is unknown."""
    names = [line.split("#")[0].strip() for line in pins.read_text(encoding="utf-8").splitlines()]
    everything = tuple(name for name in names if name)
    command = [
        *(sys.executable, "-m", "pip_audit", "--requirement", str(pins)),
        *("--disable-pip", "--no-deps", "--progress-spinner", "off", "--format", "json"),
    ]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, check=False
        )
        report = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        reason = f"pip-audit gave no answer ({type(error).__name__})"
        return DependencyAudit(
            clean=(), vulnerable=(), unknown=tuple(f"{name}: {reason}" for name in everything)
        )
    return audit_of(report)


def main() -> int:
    """Audit and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pins", type=Path, default=ROOT / "constraints.txt")
    parser.add_argument("--timeout", type=float, default=300.0)
    parser.add_argument("--accept-unknown", action="store_true")
    options = parser.parse_args()
    audited = audit(options.pins, options.timeout)
    say = sys.stdout.write
    for line in audited.vulnerable:
        say(f"VULNERABLE  {line}\n")
    for line in audited.unknown[:10]:
        say(f"NOT AUDITED {line}\n")
    if len(audited.unknown) > 10:
        say(f"NOT AUDITED … and {len(audited.unknown) - 10} more\n")
    say(
        f"{len(audited.clean)} clean, {len(audited.vulnerable)} vulnerable, "
        f"{len(audited.unknown)} not audited\n"
    )
    if audited.status == 3 and options.accept_unknown:
        return 0
    return audited.status


if __name__ == "__main__":
    raise SystemExit(main())
