"""Writes a CycloneDX 1.6 software bill of materials: `python scripts/sbom.py --output sbom.json`.

Lists what is installed and needed by semblend with the extras named, how each depends on
the others, and the bundled model with its hash. The same environment gives the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import uuid
from collections.abc import Iterable
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any
from urllib.parse import quote

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
MODELS = ROOT / "models"


def closure(name: str, extras: Iterable[str]) -> dict[str, set[str]]:
    """Installed packages that `name` needs with `extras`: name to the names it needs."""
    needs: dict[str, set[str]] = {}
    todo = [(canonicalize_name(name), frozenset(extras))]
    seen: set[tuple[str, frozenset[str]]] = set()
    while todo:
        current, wanted = todo.pop()
        if (current, wanted) in seen:
            continue
        seen.add((current, wanted))
        needs.setdefault(current, set())
        for text in _installed(current).requires or ():
            requirement = Requirement(text)
            if not any(_applies(requirement, extra) for extra in (*wanted, "")):
                continue
            needed = canonicalize_name(requirement.name)
            try:
                _installed(needed)
            except PackageNotFoundError:
                continue  # an extra's package that nobody installed here
            if needed != current:
                needs[current].add(needed)
            todo.append((needed, frozenset(requirement.extras)))
    return needs


def bill(extras: Iterable[str]) -> dict[str, Any]:
    """The document."""
    needs = closure("semblend", extras)
    components = [_component(name) for name in sorted(needs) if name != "semblend"]
    components += [_model(folder) for folder in sorted(MODELS.glob("*/model.safetensors"))]
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {**_component("semblend"), "type": "application"}},
        "components": components,
        "dependencies": [
            {"ref": _reference(name), "dependsOn": sorted(map(_reference, needed))}
            for name, needed in sorted(needs.items())
        ],
    }
    digest = hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
    return {"serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, digest)}", **document}


def _installed(name: str) -> Distribution:
    return distribution(name)


def _applies(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def _reference(name: str) -> str:
    return f"pkg:pypi/{name}@{quote(_installed(name).version)}"


def _component(name: str) -> dict[str, Any]:
    found = _installed(name)
    component: dict[str, Any] = {
        "type": "library",
        "bom-ref": _reference(name),
        "name": name,
        "version": found.version,
        "purl": _reference(name),
    }
    if licence := found.metadata.get("License-Expression"):
        component["licenses"] = [{"expression": licence}]
    elif licence := _classified(found):
        component["licenses"] = [{"license": {"name": licence}}]
    return component


def _classified(found: Distribution) -> str:
    kinds = found.metadata.get_all("Classifier") or ()
    named = [kind.rpartition(" :: ")[2] for kind in kinds if kind.startswith("License ::")]
    stated = (found.metadata.get("License") or "").strip().splitlines()
    return ", ".join(named) or (stated[0][:100] if stated else "")


def _model(weights: Path) -> dict[str, Any]:
    return {
        "type": "machine-learning-model",
        "bom-ref": f"model:{weights.parent.name}",
        "name": weights.parent.name,
        "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(weights.read_bytes()).hexdigest()}],
    }


def main() -> int:
    """Write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--extras", default="serve,embedder,fleet,benchmarks")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    text = json.dumps(bill(options.extras.split(",")), indent=2) + "\n"
    if options.output is None:
        sys.stdout.write(text)
    else:
        options.output.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
