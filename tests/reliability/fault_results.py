"""What the runs saw of each fault point, and the table of docs/reliability.md made from it.

Every engine's tests write a result to build/faults/<engine>/<point>; the table is then
rendered with

    python -m tests.reliability.fault_results
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

import semblend.core.faults as faults_module
from semblend.core.faults import FaultPoint

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "build" / "faults"
PAGE = ROOT / "docs" / "reliability.md"
ENGINES = {
    "embedded": "Embedded engine",
    "layerwise": "Embedded, layer by layer",
    "vllm": "vLLM",
    "sglang": "SGLang",
    "trtllm": "TensorRT-LLM",
}
BEGIN, END = "<!-- faults:begin -->", "<!-- faults:end -->"


def record(engine: str, point: FaultPoint, result: str) -> None:
    """Note what a run saw; called only when all its checks have passed."""
    path = RESULTS / engine / f"{point.value}.json"  # one each: tests run side by side
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result), encoding="utf-8")


def table(results: dict[str, dict[str, str]]) -> str:
    """Fault points by engines, as Markdown."""
    lines = [
        "| Fault point | What fails | " + " | ".join(ENGINES.values()) + " |",
        "| --- | --- |" + " --- |" * len(ENGINES),
    ]
    for point, meaning in meanings().items():
        cells = (results.get(engine, {}).get(point.value, "not run") for engine in ENGINES)
        lines.append(f"| `{point.value}` | {meaning} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def meanings() -> dict[FaultPoint, str]:
    """What each point is, as the enumeration itself says."""
    tree = ast.parse(Path(faults_module.__file__).read_text(encoding="utf-8"))
    (points,) = (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "FaultPoint")
    said: dict[FaultPoint, str] = {}
    name = ""
    for node in points.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and name:
            said[FaultPoint[name]] = str(node.value.value).rstrip(".")
    return said


def committed_table() -> str:
    """The table that the page holds now."""
    return PAGE.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0].strip()


def main() -> int:
    """Render the page's table from what the runs left."""
    results = {
        engine: {
            path.stem: json.loads(path.read_text(encoding="utf-8"))
            for path in (RESULTS / engine).glob("*.json")
        }
        for engine in ENGINES
    }
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n{table(results)}\n{END}{after}", encoding="utf-8")
    said = ", ".join(f"{len(seen)} points of {engine}" for engine, seen in results.items())
    sys.stdout.write(f"{PAGE.name}: {said}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
