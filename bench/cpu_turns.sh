#!/bin/bash
# How well a tiny model's steps are predicted on the CPU after a calibration: bench/cpu_turns.sh MOEPLAN [TURNS] [MODEL]
# Each turn calibrates anew, at lengths 64, 128 and 256 of one and two sequences, and runs four plans that were in none of it. A single pair says nothing on a machine that others share
# (3 to 43 % off, bench/results/calibration_h200.md), medians over turns agree within 2 %: so medians are compared. Nothing else may run meanwhile; about 7 s a turn on two cores.
set -e
moeplan=$1 turns=${2:-8} model=${3:-kimi-k3-tiny} folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
common="$model --device cpu --gpus 1 --runtime cpu -q"
plans=("--seq 96 --global-batch 1 --micro-batch 1 --recompute none" "--seq 192 --global-batch 1 --micro-batch 1 --recompute full"
  "--seq 80 --global-batch 2 --micro-batch 2 --recompute none" "--seq 160 --global-batch 1 --micro-batch 1 --recompute selective --targets attention --rank 16")
uptime
for turn in $(seq "$turns"); do
  "$moeplan" calibrate --model "$model" --seq 64,128,256 --micro-batch 1,2 --samples 9 --threads 2 -q -o "$folder/$turn.profile.json" > "$folder/log" || true
  for i in "${!plans[@]}"; do
    # shellcheck disable=SC2086
    "$moeplan" plan $common ${plans[$i]} --profile "$folder/$turn.profile.json" -o "$folder/plan.json" > "$folder/log"
    "$moeplan" run "$folder/plan.json" --steps 10 --threads 2 --data random -q -o "$folder/measured.json" > "$folder/log"
    "$moeplan" compare "$folder/plan.json" "$folder/measured.json" -q --json > "$folder/$turn.$i.json"
  done
done
python3 - "$folder" "$turns" "${plans[@]}" << 'END'
import json, statistics, sys
folder, turns, plans = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
for i, plan in enumerate(plans):
    steps = [json.load(open(f"{folder}/{t}.{i}.json"))["step_seconds"] for t in range(1, turns + 1)]
    predicted, measured = (statistics.median(s[side] for s in steps) for side in ("predicted", "measured"))
    single = sorted(100 * (s["measured"] / s["predicted"] - 1) for s in steps)
    print(f"{plan}: {1e3 * predicted:.1f} ms predicted, {1e3 * measured:.1f} measured: {100 * (measured / predicted - 1):+.1f} % (single turns {single[0]:+.1f} to {single[-1]:+.1f} %)")
END
