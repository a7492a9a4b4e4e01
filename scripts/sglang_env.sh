#!/usr/bin/env bash
# Make the environment of the SGLang tests: .venv-sglang with real, unmodified SGLang on a CPU.
# Idempotent: nothing is done when the inputs have not changed since the last run.
#   scripts/sglang_env.sh [PYTHON]
set -euo pipefail
cd "$(dirname "$0")/.."

python="${1:-$(scripts/find_python.sh)}"
folder=.venv-sglang
tests=tests/integration/sglang
requirements="$tests/requirements.txt"
stamp="$folder/.requirements"
inputs() { cat "$requirements" "$tests"/shims/*.py pyproject.toml scripts/sglang_env.sh; }

if [[ -f "$stamp" ]] && inputs | cmp -s - "$stamp"; then
    exit 0
fi
[[ -x "$folder/bin/python" ]] || "$python" -m venv "$folder"
pip() { "$folder/bin/python" -m pip install --quiet --disable-pip-version-check "$@"; }
# torch first and pinned: SGLang asks for a CUDA build of a later one, and runs on this.
pip torch==2.13.0
pip --no-deps sglang==0.5.23
pip --requirement "$requirements"
# Imported by SGLang at start; their own requirements would pull CUDA packages in.
pip --no-deps triton==3.7.0 torchvision==0.28.0 xgrammar==0.2.7
pip --no-deps soundfile==0.13.1 cffi pycparser smg-grpc-servicer
pip --no-deps --editable .
# Test-only: the registry's torchvision declares its operators in a CUDA library that a CPU torch
# cannot load, so a .pth file declares their schemas (no kernels) before it is imported.
site="$("$folder/bin/python" -c 'import site; print(site.getsitepackages()[0])')"
cp "$tests/shims/torchvision_schemas.py" "$site/semblend_test_torchvision_schemas.py"
echo 'import semblend_test_torchvision_schemas' > "$site/semblend_test_torchvision_schemas.pth"
inputs > "$stamp"
