#!/bin/bash
# One rank of two plans for 128 GPUs, alone on one H200 (bench/results/calibration_h200.md): rank 0 of Kimi K3 and rank 3 of DeepSeek-V3 under a natural trace, experts over 64 ranks and dense parts over 128.
#   bench/slices.sh MOEPLAN FOLDER [PROFILE]     FOLDER/{k3,v3}.json, .measured.json
set -e
moeplan=$1 folder=$2 profile=$3
mkdir -p "$folder"
slice() {   # NAME RANK MODEL [more]
  "$moeplan" plan "$3" --device h200 --gpus 128 --pp 1 --tp 1 --cp 1 --etp 1 --ep 64 --dp-shard 128 --global-batch 128 --micro-batch 1 --seq 4096 --recompute full --offload none --frozen-storage bf16 ${profile:+--profile "$profile"} "${@:4}" -q -o "$folder/$1.json" > "$folder/$1.log"
  "$moeplan" run "$folder/$1.json" --rank-slice "$2" --backend cuda --data random --steps 3 -q -o "$folder/$1.measured.json" >> "$folder/$1.log" 2>&1 || echo "$1: $(tail -n 1 "$folder/$1.log")"
}
slice v3 3 deepseek-v3 --load deepseek-v3-prefill-in4096
slice k3 0 kimi-k3
