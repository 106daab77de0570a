#!/bin/bash
# run_fuzzer.sh TREE NAME SECONDS: runs one fuzzer over its committed seeds, then mutates for SECONDS. What it finds new
# goes to TREE/corpus/<what>, what breaks it to TREE/artifacts/; the committed seeds are only read.
set -euo pipefail
tree=$1 name=$2 seconds=$3
seeds="$(dirname "$0")/corpus/${name#fuzz_}"
mkdir -p "$tree/corpus/$name" "$tree/artifacts"
folders=("$tree/corpus/$name")
if [ -d "$seeds" ]; then folders+=("$seeds"); fi
exec "$tree/tests/fuzz/$name" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=65536 \
  -print_final_stats=1 -artifact_prefix="$tree/artifacts/$name-" "${folders[@]}"
