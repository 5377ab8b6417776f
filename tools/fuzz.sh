#!/usr/bin/env bash
# Gives each target of a build with the `fuzz` preset mutated bytes for some seconds, or until it has
# had ten million or an hour of a core in all calls together, and says how many runs and seconds of a
# core that were, in this call and in all, how many edges of the program they reached, and what was
# found.
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

enough_runs=10000000 enough_seconds=3600
TIMEFORMAT='%U %S'
# One thread each, and no more memory than inputs of at most 64 KB may take. These are no longer than
# some times the longest first input: what parsers do with longer ones is slower, not other.
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
# What AddressSanitizer keeps of freed blocks would fill the limit below within an hour, and its
# memmem looks at all of the text for each place that is found.
export ASAN_OPTIONS=intercept_memmem=0:malloc_context_size=4:quarantine_size_mb=8:allocator_release_to_os_interval_ms=500
status=0
longest_allowed() { # TARGET
  local longest
  longest=$(find "tests/fuzz/corpus/$1" -type f -printf '%s\n' | sort -n | tail -1)
  echo $((longest * 4 < 1024 ? 1024 : longest * 4 > 65536 ? 65536 : longest * 4))
}
total() { # TARGET COLUMN
  awk -v target="$1" -v column="$2" '$1 == target { sum += $column } END { print sum + 0 }' out/fuzz/runs
}

mkdir -p out/fuzz
touch out/fuzz/runs
printf '%-20s %12s %8s %12s %8s %8s  %s\n' target runs seconds 'runs in all' seconds edges found
for target in "$@"; do
  [[ $target == context_corpus ]] && continue
  found=out/fuzz/found/$target kept=out/fuzz/corpus/$target log=out/fuzz/$target.log
  mkdir -p "$found" "$kept"
  left=$((enough_runs - $(total "$target" 2)))
  seconds_left=$((enough_seconds - $(total "$target" 3)))
  [[ $left -gt 0 && $seconds_left -gt 0 ]] || continue
  result=nothing
  # Beside other work a second of the clock is less than one of a core.
  took=$({ time "$build/tests/fuzz/fuzz_$target" -runs="$left" -timeout=20 \
    -max_total_time="$((seconds < seconds_left ? seconds : seconds_left))" \
    -rss_limit_mb=4000 -malloc_limit_mb=300 -max_len="$(longest_allowed "$target")" \
    -print_final_stats=1 -artifact_prefix="$found/" \
    "$kept" "tests/fuzz/corpus/$target" >"$log" 2>&1; } 2>&1) ||
    result="see $found and $log" status=1
  took=$(awk '{ printf "%d", $1 + $2 }' <<<"$took")
  runs=$(sed -n 's/^stat::number_of_executed_units: //p' "$log")
  echo "$target ${runs:-0} $took" >>out/fuzz/runs
  edges=$(grep -ao 'cov: [0-9]*' "$log" | tail -1 | cut -d' ' -f2) || true  # none: a seed ended it
  printf '%-20s %12s %8s %12s %8s %8s  %s\n' "$target" "${runs:-?}" "$took" \
    "$(total "$target" 2)" "$(total "$target" 3)" "${edges:-?}" "$result"
done
exit $status
