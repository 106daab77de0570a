#!/bin/bash
# Fetches the chat templates that models were published with, for the tests that render them: out of the PyPI source
# package of llama-cpp-python, which carries llama.cpp's collection. pip checks the package's hash before anything in it
# is looked at.
set -euo pipefail
cd "$(dirname "$0")/.."

version=0.3.36
target=models/templates
package="llama-cpp-python==$version --hash=sha256:832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
if [ "$(cat "$target/.version" 2>/dev/null)" = "$version" ]; then exit 0; fi

mkdir -p models
work=$(mktemp -d models/.fetch.XXXXXX)
trap 'rm -rf "$work"' EXIT
echo "fetching the chat templates (77 MB)" >&2
echo "$package" >"$work/requirements.txt"
python3 -m pip download --disable-pip-version-check --progress-bar off --no-deps --no-binary llama-cpp-python \
  --require-hashes -r "$work/requirements.txt" -d "$work" >&2
mkdir "$work/templates"
tar --no-same-owner -xzf "$work/llama_cpp_python-$version.tar.gz" -C "$work/templates" --strip-components=5 \
  --wildcards "llama_cpp_python-$version/vendor/llama.cpp/models/templates/*.jinja"
echo "$version" >"$work/templates/.version"
rm -rf "$target"
mv "$work/templates" "$target"
echo "chat templates: $target" >&2
