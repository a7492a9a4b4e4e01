#!/usr/bin/env bash
# Runs the light unit tests on the oldest and the newest Python found, except the one on which
# `make unit` runs all tests: core, discovery, planning and the house rules need no engine.
#   scripts/test_pythons.sh
set -euo pipefail
cd "$(dirname "$0")/.."

tests=(
    tests/core tests/planning tests/test_house.py tests/test_pipeline.py
    tests/discovery/test_alignment.py tests/discovery/test_donor_store.py
    tests/discovery/test_fingerprint_table.py tests/discovery/test_fingerprints.py
    tests/discovery/test_token_arena.py
    tests/integration/test_audit.py tests/integration/test_modes.py tests/integration/test_plan_cuts.py
)
whole=$(.venv/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || true)
mapfile -t found < <(scripts/find_python.sh all)
for version in 3.11 3.13; do
    [[ "${found[*]}" == *"$version "* ]] || echo "SKIPPED: Python $version is not on this machine" >&2
done

ran=""
for each in "${found[0]}" "${found[-1]}"; do
    read -r version python <<<"$each"
    if [[ "$version" == "$whole" || "$version" == "$ran" ]]; then
        continue
    fi
    folder=".venv-python$version"
    if ! cmp -s pyproject.toml "$folder/.inputs"; then
        [[ -x "$folder/bin/python" ]] || "$python" -m venv "$folder"
        "$folder/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt \
            --editable . hypothesis pytest pytest-timeout pytest-xdist
        cp pyproject.toml "$folder/.inputs"
    fi
    echo "unit tests on Python $version"
    "$folder/bin/python" -m pytest -q -n 2 --dist loadfile "${tests[@]}"
    ran=$version
done
[[ -n "$ran" ]] || echo "SKIPPED: no Python but $whole, which make unit uses, is on this machine" >&2
