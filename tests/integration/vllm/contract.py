"""The connector's contract as data: signatures of vLLM's base classes, read from source.

python -m tests.integration.vllm.contract PATH/TO/vllm > tests/integration/vllm/contracts/0.32.json
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

# File of vLLM, and the classes whose methods and fields we implement, call or construct.
WATCHED = {
    "distributed/kv_transfer/kv_connector/v1/base.py": (
        "KVConnectorBase_V1",
        "SupportsHMA",
        "KVConnectorMetadata",
        "KVConnectorWorkerMetadata",
    ),
    "distributed/kv_transfer/kv_connector/v1/metrics.py": (
        "KVConnectorStats",
        "KVConnectorPromMetrics",
    ),
    "v1/outputs.py": ("KVConnectorOutput",),
    "v1/worker/utils.py": ("AttentionGroup",),
    "v1/attention/backend.py": ("CommonAttentionMetadata",),
}


def read_contract(package: Path) -> dict[str, dict[str, str]]:
    """Class name to member name to what it looks like."""
    contract: dict[str, dict[str, str]] = {}
    for file, names in WATCHED.items():
        tree = ast.parse((package / file).read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name in names:
                contract[node.name] = dict(_members(node))
    return contract


def _members(node: ast.ClassDef):
    for member in node.body:
        if isinstance(member, ast.FunctionDef):
            marks = " ".join(f"@{ast.unparse(mark)}" for mark in member.decorator_list)
            returns = f" -> {ast.unparse(member.returns)}" if member.returns else ""
            yield member.name, f"{marks} ({ast.unparse(member.args)}){returns}".strip()
        elif isinstance(member, ast.AnnAssign):
            yield ast.unparse(member.target), ast.unparse(member.annotation)


if __name__ == "__main__":
    print(json.dumps(read_contract(Path(sys.argv[1])), indent=1, sort_keys=True))
