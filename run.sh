#!/usr/bin/env bash
# Installs what is missing (Debian 12), builds, and runs moeplan.
#   ./run.sh              the main job: Kimi K3 fine-tuned with LoRA on 128 H200, planned; and a tiny model of its shape, trained here and compared with its prediction
#   ./run.sh ARGUMENTS    moeplan with these arguments, e.g. ./run.sh inspect kimi-k3
#   ./run.sh gui [FILE]   the window (installs Qt 6 and QCustomPlot)
set -euo pipefail
start=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")"
# shellcheck source=cmake/prepare.sh
source cmake/prepare.sh

install_missing
if [ "${1:-}" = gui ]; then
  install_gui
  build moeplan
  if ninja -C build -n moeplan_gui >/dev/null 2>&1; then build moeplan_gui; fi
  if [ ! -x build/moeplan-gui ]; then
    say "skipped: moeplan-gui (no Qt 6 or no QCustomPlot)"
    exit 2
  fi
  shift
  program=$PWD/build/moeplan-gui
  cd "$start"
  exec "$program" "$@"
fi
build moeplan
program=$PWD/build/moeplan
cd "$start" # file arguments are the caller's

if [ "$#" -gt 0 ]; then exec "$program" "$@"; fi

say "moeplan inspect kimi-k3"
"$program" inspect kimi-k3
say "moeplan plan kimi-k3 --cluster 128xh200"
"$program" plan kimi-k3 --cluster 128xh200
# What runs on any machine: a model of the same shape, planned, trained for a few steps on whole sequences, as plans are priced for; then its calls are
# timed, one by one, and what follows from them stands beside what the steps took.
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
tiny=(kimi-k3-tiny --device cpu --gpus 1 --runtime cpu --workload lora-experts --rank 8 --seq 128 --global-batch 2 --micro-batch 2 --recompute none --top 1)
say "moeplan plan kimi-k3-tiny --device cpu --gpus 1"
"$program" plan "${tiny[@]}" -o "$here/plan.json"
say "moeplan run plan.json --steps 8 --data random"
"$program" run "$here/plan.json" --steps 8 --data random -o "$here/measured.json"
say "moeplan calibrate plan.json"
code=0
"$program" calibrate "$here/plan.json" --samples 15 --noise 0.05 -q -o "$here/profile.json" >/dev/null || code=$?
if [ "$code" -eq 0 ]; then
  say "moeplan plan kimi-k3-tiny --profile profile.json; moeplan compare plan.json measured.json"
  "$program" plan "${tiny[@]}" --profile "$here/profile.json" -q -o "$here/calibrated.json" >/dev/null
elif [ "$code" -ne 4 ]; then
  exit "$code"
else # too noisy, which it said
  cp "$here/plan.json" "$here/calibrated.json"
fi
"$program" compare "$here/calibrated.json" "$here/measured.json"
