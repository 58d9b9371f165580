#!/usr/bin/env bash
# Installs what is missing (Debian 12), builds everything and runs the tests. Arguments go to ctest, e.g. ./test.sh -R core
# Needs no GPU, no nvcc and no display: what cannot run here is skipped by name. Last line: N passed, N failed, N skipped.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
# shellcheck source=cmake/prepare.sh
source cmake/prepare.sh

install_missing
install_gui
build all

report=build/test-report.xml
rm -f "$report"
status=0
ctest --test-dir build --parallel "$(nproc)" --output-on-failure --progress --output-junit "$PWD/$report" "$@" || status=$?

command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ] || echo "skipped: CUDA kernels and their tests (no nvcc)"
command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1 || echo "skipped: what runs on a GPU (no GPU)"
[ -x build/moeplan-gui ] || echo "skipped: moeplan-gui (no Qt 6 or no QCustomPlot)"

if [ ! -f "$report" ]; then
  echo "0 passed, 1 failed, 0 skipped"
  exit 1
fi
# The report's first element carries one attribute a line, indented by a tab.
count() { sed -n "/[[:space:]]$1=\"[0-9]*\"/{s/.*[[:space:]]$1=\"\([0-9]*\)\".*/\1/p;q}" "$report"; }
total=$(count tests)
failed=$(count failures)
skipped=$(($(count skipped) + $(count disabled)))
echo "$((total - failed - skipped)) passed, $failed failed, $skipped skipped"
exit "$status"
