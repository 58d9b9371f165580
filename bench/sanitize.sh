#!/bin/bash
# compute-sanitizer's tools over the CUDA tests: bench/sanitize.sh CUDA_TESTS [FILTER] [SECONDS_A_TOOL] [TOOLS]
# The tests are dealt out to a process a core. One line a tool: processes that ended, tests that passed, what was found. Reports lie in $OUT, else here.
set -u
tests=$1 filter=${2:-*} limit=${3:-600} tools=${4:-memcheck initcheck synccheck racecheck}
export MOEPLAN_REPLAYS=1   # that bits repeat 50 times is for the plain run to say
export GTEST_TOTAL_SHARDS=$(nproc)
out=${OUT:-.}
for tool in $tools; do
  reports=()
  for ((shard = 0; shard < GTEST_TOTAL_SHARDS; ++shard)); do
    reports+=("$out/sanitize_${tool}_$shard.txt")
    GTEST_SHARD_INDEX=$shard timeout "$limit" compute-sanitizer --tool "$tool" --print-limit 20 "$tests" --gtest_filter="$filter" > "${reports[-1]}" 2>&1 &
  done
  wait
  found=$(grep -hE '(ERROR|RACECHECK) SUMMARY' "${reports[@]}" | sed 's/=* *//' | sort | uniq -c | tr -s ' \n' ' ,')
  echo "$tool: $(grep -lE 'SUMMARY' "${reports[@]}" | wc -l) of $GTEST_TOTAL_SHARDS processes ended in $limit s; $(cat "${reports[@]}" | grep -c '^\[       OK') tests passed, $(cat "${reports[@]}" | grep -c '^\[  FAILED.*ms)') failed;$found"
done
