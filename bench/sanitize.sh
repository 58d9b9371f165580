#!/bin/bash
# compute-sanitizer's tools over the CUDA tests: bench/sanitize.sh CUDA_TESTS [FILTER] [SECONDS_A_TOOL] [TOOLS] [TESTS_A_PROCESS]
# Tests are dealt out, a few to a process and a process a core, until the seconds are over. For each tool: how many ran, what was found in which
# test, and which tests were not reached. Whole reports, test by test, lie in $OUT, else here. memcheck alone looks at tests of more than 2^31 elements.
# Reports are listed by test and kernel, those of kernels that are not ours (by their names alone) apart: cuBLASLt's own kernels are reported by racecheck, and by
# initcheck where a second kernel sums what a first has left in the workspace. Leaving them out of racecheck (--kernel-name-exclude) makes the tool itself fail.
set -u
tests=$1 filter=${2:-*} limit=${3:-600} tools=${4:-memcheck initcheck synccheck racecheck} each=${5:-16}
export MOEPLAN_REPLAYS=0   # that bits repeat 50 times is for the plain run to say
out=${OUT:-.} giant='*2To31*:*TwoToThe31*:*two_billion*:*Million*'

one_process() {   # dir, program, tool, end, tests
  local dir=$1 program=$2 tool=$3 left=$(($4 - $(date +%s))) report
  shift 4
  ((left > 0)) || return 0
  report=$(mktemp "$dir/XXXXXX")
  timeout "$left" compute-sanitizer --tool "$tool" --print-limit 20 "$program" --gtest_filter="$(IFS=:; echo "$*")" > "$report" 2>&1
}
export -f one_process

for tool in $tools; do
  dir=$(mktemp -d) end=$(($(date +%s) + limit)) chosen=$filter
  [ "$tool" = memcheck ] || { [[ $filter == *-* ]] && chosen=$filter:$giant || chosen=$filter-$giant; }
  "$tests" --gtest_list_tests --gtest_filter="$chosen" | awk '/^[^ ]/ { suite = $1; next } { print suite $1 }' | shuf --random-source=<(yes) > "$dir.tests"
  xargs -a "$dir.tests" -P "$(nproc)" -n "$each" bash -c 'one_process "$@"' _ "$dir" "$tests" "$tool" "$end"
  # Each line of a report behind the name of the test that ran.
  find "$dir" -type f -exec awk '/^\[ RUN/ { test = $4 } /^=========/ && !/COMPUTE-SANITIZER|SUMMARY/ { print test ": " $0 }' {} + > "$out/sanitize_$tool.txt"
  cat "$dir"/* > "$dir.all" 2> /dev/null
  echo "$tool: $(wc -l < "$dir.tests") tests in $(find "$dir" -type f | wc -l) processes; $(grep -c '^\[       OK' "$dir.all") passed, $(grep -c '^\[  SKIPPED.*ms)' "$dir.all") skipped, $(grep -c '^\[  FAILED.*ms)' "$dir.all") failed within $limit s;$(
    grep -hE '(ERROR|RACECHECK) SUMMARY' "$dir.all" | sed 's/=* *//' | sort | uniq -c | tr -s ' \n' ' ,')"
  awk -F': =+ ' '$2 ~ /^[^ ]/ { head = $1 ": " $2 } $2 ~ /^(Host API|Program hit)/ { print head } $2 ~ /(at|between|and) .*\+0x/ { print head " | " $2 }' "$out/sanitize_$tool.txt" |
    sed -E 's/\(?[0-9]+,[0-9]+,[0-9]+\)?//g; s/0x[0-9a-f]+//g; s/[0-9]+ hazards//' | sort | uniq -c | sort -rn | cut -c 1-300 > "$dir.reports"
  echo "  reports in kernels of ours, by test: $(grep -c 'moeplan\|Host API\|Program hit' "$dir.reports")"
  grep 'moeplan\|Host API\|Program hit' "$dir.reports" | head -40 | sed 's/^/    /'
  echo "  in kernels that are not ours: $(grep -vc 'moeplan\|Host API\|Program hit' "$dir.reports")"
  grep -v 'moeplan\|Host API\|Program hit' "$dir.reports" | head -10 | sed 's/^/    /'
  awk '/^\[       OK|^\[  SKIPPED|^\[  FAILED/ { print $4 }' "$dir.all" | tr -d ',' | sort -u > "$dir.done"
  sort "$dir.tests" | comm -23 - "$dir.done" > "$out/unreached_$tool.txt"
  [ -s "$out/unreached_$tool.txt" ] && echo "  not ended: $(wc -l < "$out/unreached_$tool.txt") tests: $(sed -E 's,/[^/]*$,,' "$out/unreached_$tool.txt" | sort | uniq -c | sort -rn | tr -s ' \n' ' ,' | cut -c 1-400)"
  rm -rf "$dir" "$dir".*
done
true
