#!/usr/bin/env bash
# Makes the environment of the fleet's tests: nats-server, and .venv-fleet on top of .venv with
# what only those tests need. Idempotent: does nothing if the requirements have not changed.
#   scripts/fleet_env.sh
set -euo pipefail
cd "$(dirname "$0")/.."

base=.venv
folder=.venv-fleet
requirements=tests/fleet/requirements.txt
stamp="$folder/.requirements"

[[ -x "$base/bin/python" ]] || { echo "make install first: .venv is not there" >&2; exit 1; }

# nats-server is the log. Mooncake's wheel links against the RDMA libraries even if unused.
packages=(nats-server libibverbs1 librdmacm1 libnl-3-200 libnl-route-3-200 libnuma1 iproute2)
# Without helm, Go's templates render the chart, with helm's functions.
command -v helm >/dev/null ||
    packages+=(golang-go golang-github-masterminds-sprig-dev golang-github-ghodss-yaml-dev)
missing=()
for package in "${packages[@]}"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
if ((${#missing[@]})); then
    if [[ $EUID -eq 0 ]] && command -v apt-get >/dev/null; then
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "${missing[@]}" >/dev/null
    else
        echo "install these first: ${missing[*]}" >&2
        exit 1
    fi
fi

if [[ -f "$stamp" ]] && cmp -s "$requirements" "$stamp"; then
    exit 0
fi
[[ -x "$folder/bin/python" ]] || "$base/bin/python" -m venv --without-pip "$folder"
# Packages in .venv are not installed twice: this environment falls back to them.
site=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
packages_of_base=$("$base/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
echo "import site; site.addsitedir('$packages_of_base')" >"$site/base-environment.pth"
# Without their dependencies: Dynamo lists one that no registry serves in full (its simulator,
# which neither the frontend nor the mockers need), NIXL and Mooncake list CUDA packages.
grep -v '^#' "$requirements" | grep -- ' # alone$' | cut -d' ' -f1 |
    xargs "$folder/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps
grep -v '^#' "$requirements" | grep -v -- ' # alone$' |
    xargs "$folder/bin/python" -m pip install --quiet --disable-pip-version-check 2>/dev/null
cp "$requirements" "$stamp"
