#!/usr/bin/env bash
# Finds the Python to use: the first of 3.11, 3.12 and 3.13 that runs and can make environments.
#   scripts/find_python.sh          prints its path
#   scripts/find_python.sh all      prints all, one "3.12 /path/to/python" per line, oldest first
set -euo pipefail

# A name on the PATH may be a shim that only suggests an installation, so it must really run.
works() {
    [[ "$("$1" -c 'import ensurepip, sys, venv; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" == "$2" ]]
}

candidates() {
    echo "python$1" python3 python
    ls -d "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python 2>/dev/null || true
    if command -v uv >/dev/null; then uv python find --no-python-downloads "$1" 2>/dev/null || true; fi
}

found=0
for version in 3.11 3.12 3.13; do
    for python in $(candidates "$version"); do
        if works "$python" "$version"; then
            found=1
            path=$("$python" -c 'import sys; print(sys.executable)')
            [[ "${1:-}" == all ]] || { echo "$path"; exit 0; }
            echo "$version $path"
            break
        fi
    done
done
if ((!found)); then
    echo "no Python 3.11, 3.12 or 3.13 with venv was found; install one, or name it: make PYTHON=/path/to/python" >&2
    exit 1
fi
