#!/bin/bash
# Builds the page from web/ and writes FOLDER/page_files.cpp; the build calls it. Needs no network.
#   tools/build_page.sh FOLDER
set -euo pipefail
cd "$(dirname "$0")/.."
if [ ! -x .venv-node/bin/node ] || [ ! -d web/node_modules/vite ]; then
  echo "The page needs Node.js and its packages: run tools/setup.sh node, or configure with -DTAILRACE_PAGE=OFF." >&2
  exit 1
fi
mkdir -p "$1"
exec .venv-node/bin/node web/build.mjs "$1"
