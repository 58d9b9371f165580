#!/bin/bash
# compute-sanitizer's four tools over the CUDA tests: bench/sanitize.sh CUDA_TESTS [FILTER] [SECONDS_A_TOOL]
# One line a tool: what it found, which tests ran, and whether the time was enough. Reports lie beside each other in $OUT, else the working folder.
set -u
tests=$1 filter=${2:-*} limit=${3:-600}
out=${OUT:-.}
for tool in memcheck initcheck synccheck racecheck; do
  timeout "$limit" compute-sanitizer --tool "$tool" --print-limit 20 "$tests" --gtest_brief=1 --gtest_filter="$filter" > "$out/sanitize_$tool.txt" 2>&1
  state=$?
  [ $state = 124 ] && ended="stopped after $limit s" || ended="ended"
  echo "$tool: $(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$out/sanitize_$tool.txt" | tail -1 | sed 's/=* *//'); $(grep -E 'tests ran' "$out/sanitize_$tool.txt" | tail -1 | sed 's/\[=*\] //'); $ended"
done
