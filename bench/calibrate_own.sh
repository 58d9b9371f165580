#!/bin/bash
# Measures this project's kernels on the device at hand for configs/profiles: bench/calibrate_own.sh MOEPLAN PROFILE.json NAME K3_OF_4_LAYERS
# The models, lengths and classes are those named in bench/results/calibration_h200.md; lengths and ranks between them are left for judging what is interpolated.
# Says after each model how many seconds it took.
set -e
moeplan=$1 profile=$2 name=$3 k3=$4
lengths=512,1024,1536,2048,3072,4096,6144,8192,12288,16384
all=(--model kimi-linear-48b-a3b --model qwen3-30b-a3b --model gpt-oss-20b --model "$k3")
measure() { "$moeplan" calibrate --backend cuda -o "$profile" --name "$name" --samples 20 "$@" 2>&1 | sed -n 's|^moeplan: note: ||p'; }
took() { echo "$1: $((SECONDS - began)) s"; began=$SECONDS; }
began=$SECONDS
for model in kimi-linear-48b-a3b qwen3-30b-a3b gpt-oss-20b "$k3"; do
  case $model in qwen3* | gpt-oss*) dense=attention adapted=attention,experts ;; *) dense=attention,dense,shared adapted=attention,dense,shared,experts ;; esac
  measure --no-power --model "$model" --seq $lengths
  measure --no-power --model "$model" --seq 1024,2048,4096 --micro-batch 2,4
  measure --no-power --model "$model" --seq 1024,2048,4096,8192 --targets attention
  measure --no-power --model "$model" --seq 1024,2048,4096,8192 --targets $adapted --rank 16
  # Ranks that are no multiples of 8 take other products than those that are; experts take none.
  measure --no-power --model "$model" --seq 1024,4096 --targets $dense --rank 20,24,36,40,56,60,128 --only linear
  took "$model, without power"
done
measure --no-power --model kimi-k3 --ep 64 --seq 2048,4096,8192
# Experts as gpt-oss stores them.
plans=$(mktemp -d)
for length in 512 1024 2048 4096 8192 16384; do
  "$moeplan" plan gpt-oss-20b --device h200 --gpus 1 --global-batch 1 --micro-batch 1 --seq $length --frozen-storage mxfp4 --recompute full -q -o "$plans/$length.json" > "$plans/log"
done
measure --no-power "$plans"/*.json
rm -r "$plans"
took "kimi-k3 on 64 ranks, MXFP4"
# What classes of calls draw, of all models in one run: the constants of the device then rest on all of them. Other lengths and adapters draw alike. Then steps of each model.
measure "${all[@]}" --seq $lengths
took "power and steps of the four models"
# Classes of their own, whose constants are those of the run before: products with adapters, and experts of a rank among 64, which have thousands of rows each.
measure "${all[@]}" --seq 1024,4096 --targets attention,experts --rank 64 --only linear,grouped_linear
measure --model kimi-k3 --ep 64 --seq 4096,8192 --only grouped_linear
measure --model deepseek-v3 --ep 64 --seq 2048,8192 --only grouped_linear
took "adapters of rank 64, experts of 64 ranks"
