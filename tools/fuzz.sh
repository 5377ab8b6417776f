#!/usr/bin/env bash
# Gives each target of a build with the `fuzz` preset mutated bytes for some seconds, and says how many
# runs that were, how many edges of the program they reached, and what was found.
# usage: fuzz.sh BUILD_DIRECTORY SECONDS [TARGET...]
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1 seconds=$2
shift 2
if [[ $# -eq 0 ]]; then
  for program in "$build"/tests/fuzz/fuzz_*; do
    [[ -x $program && ! -d $program ]] && set -- "$@" "${program##*/fuzz_}"
  done
fi
if [[ $# -eq 0 ]]; then
  echo "fuzz: no targets in $build; build it with: cmake --preset fuzz && cmake --build --preset fuzz" >&2
  exit 1
fi

# One thread each, and no more memory than small inputs, of 40 KB at most, may take.
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
status=0
printf '%-20s %12s %8s %8s  %s\n' target runs seconds edges found
for target in "$@"; do
  [[ $target == context_corpus ]] && continue
  found=out/fuzz/found/$target kept=out/fuzz/corpus/$target log=out/fuzz/$target.log
  mkdir -p "$found" "$kept"
  begin=$SECONDS result=nothing
  if ! "$build/tests/fuzz/fuzz_$target" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=1500 \
    -malloc_limit_mb=300 -max_len=40960 -print_final_stats=1 -artifact_prefix="$found/" \
    "$kept" "tests/fuzz/corpus/$target" >"$log" 2>&1; then
    result="see $found and $log" status=1
  fi
  runs=$(sed -n 's/^stat::number_of_executed_units: //p' "$log")
  edges=$(grep -ao 'cov: [0-9]*' "$log" | tail -1 | cut -d' ' -f2) || true  # none: a seed ended it
  printf '%-20s %12s %8s %8s  %s\n' "$target" "${runs:-?}" $((SECONDS - begin)) "${edges:-?}" "$result"
done
exit $status
