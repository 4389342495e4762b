#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: tools/setup.sh build|bench|fuzz|lint
# Installs what a group of make targets needs: Debian packages where one is missing (as root), and .venv with the packages
# of python/requirements-dev.txt or bench/requirements.txt. Does nothing, in well under a second, when all is there.
set -euo pipefail
cd "$(dirname "$0")/.."

build_packages=(build-essential g++ cmake ninja-build pkg-config ccache git ca-certificates
  libfmt-dev libspdlog-dev libnuma-dev prometheus-cpp-dev zlib1g-dev libcurl4-openssl-dev libisal-dev libxxhash-dev libsimdjson-dev
  liburing-dev libcli11-dev nlohmann-json3-dev libssl-dev libgtest-dev libgmock-dev
  python3 python3-venv python3-dev)
case "${1:?usage: tools/setup.sh build|bench|fuzz|lint}" in
  build) packages=("${build_packages[@]}") ;;
  bench) packages=(fio) ;;
  fuzz) packages=(clang libclang-rt-dev) ;;
  lint) packages=(clang clang-format clang-tidy) ;;
  *) echo "tools/setup.sh: unknown group $1" >&2; exit 2 ;;
esac

missing_packages() {
  local present
  present=" $(dpkg-query -W -f '${db:Status-Status}:${Package} ' "${packages[@]}" 2>/dev/null || true)"
  for package in "${packages[@]}"; do
    [[ $present == *" installed:$package "* ]] || echo "$package"
  done
}

if ! command -v dpkg-query >/dev/null; then
  echo "setup: not a Debian system; expecting these to be there: ${packages[*]}" >&2
else
  mapfile -t missing < <(missing_packages)
  if ((${#missing[@]})); then
    if ((EUID != 0)); then
      echo "setup: packages are missing, and only root can install them. Run: apt-get install ${missing[*]}" >&2
      exit 1
    fi
    echo "setup: installing ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get -qq update
    apt-get -qq install -y --no-install-recommends "${missing[@]}" >/dev/null
  fi
fi

# The newest file that decides what .venv holds is part of the stamp, so that a change of the list is noticed.
requirements=python/requirements-dev.txt
[[ $1 == bench ]] && requirements=bench/requirements.txt
[[ $1 == build || $1 == bench ]] || exit 0

interpreter=$(for candidate in /usr/bin/python3 python3 python3.13 python3.12 python3.11; do
  "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$candidate" && break
done) || { echo "setup: no Python of version 3.11 or newer was found" >&2; exit 1; }

stamp=.venv/.stamp-${requirements//\//-}
wanted=$(sha256sum "$requirements")
if [[ -x .venv/bin/python && $(cat "$stamp" 2>/dev/null) == "$wanted" ]]; then exit 0; fi
[[ -x .venv/bin/python ]] || "$interpreter" -m venv .venv
echo "setup: installing $requirements into .venv"
install=(.venv/bin/python -m pip install --quiet --disable-pip-version-check)
if [[ $1 == bench ]]; then
  grep -v '^#' "$requirements" | while read -r peer; do
    "${install[@]}" -c python/requirements-dev.txt "$peer" || echo "setup: the peer $peer cannot be installed; the bench leaves it out" >&2
  done
else
  "${install[@]}" -r "$requirements"
fi
echo "$wanted" > "$stamp"
