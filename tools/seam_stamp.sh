#!/bin/bash
# Prints 16 hex digits that follow the text of every header that crosses from the binary to the CUDA plugin
# (src/kernels/cuda_abi.h and what it includes of this project); `headers` prints their paths instead.
set -euo pipefail
cd "$(dirname "$0")/.."
headers=$(c++ -std=c++20 -Isrc -MM src/kernels/cuda_abi.h | tr -d '\\' | tr -s ' ' '\n' | grep '^src/' | LC_ALL=C sort -u)
if [ "${1:-}" = headers ]; then
  echo "$headers"
else
  cat $headers | sha256sum | cut -c1-16
fi
