#!/bin/bash
# The second to fifth set of plans that no calibration used (bench/results/blind_h200.md; 17 to 24 are the third, 25 to 32 the fourth, from 33 on the fifth), on one H200. FROM: the first of them, 1 if not given.
#   bench/blind.sh plan MOEPLAN FOLDER K3_OF_4_LAYERS [FROM]    before the run: FOLDER/NN.json; by the profile that PROFILE names, if it is set
#   bench/blind.sh run MOEPLAN FOLDER K3_OF_4_LAYERS [FROM]     FOLDER/NN.measured.json
#   bench/blind.sh compare MOEPLAN FOLDER K3_OF_4_LAYERS [FROM] FOLDER/NN.compare.json
set -e
what=$1 moeplan=$2 folder=$3 k3=$4 from=${5:-1}
number=0
each() {   # MODEL SEQUENCES LENGTH RECOMPUTE [--targets ... --rank ...]
  number=$((number + 1))
  if [ $number -lt "$from" ]; then return; fi
  local name; name=$folder/$(printf %02d $number)
  case $what in
    plan) "$moeplan" plan "$1" --device h200 --gpus 1 --global-batch "$2" --micro-batch "$2" --seq "$3" --recompute "$4" --offload none --frozen-storage bf16 ${PROFILE:+--profile "$PROFILE"} "${@:5}" -q --json -o "$name.json" > "$name.planned.json" ;;
    run) "$moeplan" run "$name.json" --backend cuda --data random --steps 10 -q -o "$name.measured.json" > "$name.log" 2>&1 || echo "$name: $(tail -n 1 "$name.log")" ;;
    compare) "$moeplan" compare "$name.json" "$name.measured.json" -q --json > "$name.compare.json" ;;
  esac
}
mkdir -p "$folder"
each kimi-linear-48b-a3b 2 2304 full --targets attention,experts --rank 8
each kimi-linear-48b-a3b 3 1408 selective --targets attention --rank 128
each kimi-linear-48b-a3b 1 9216 full
each kimi-linear-48b-a3b 1 3328 none --targets attention,dense --rank 16
each qwen3-30b-a3b 1 6656 selective --targets attention,experts --rank 32
each qwen3-30b-a3b 2 3328 none
each qwen3-30b-a3b 4 2304 full --targets attention --rank 16
each qwen3-30b-a3b 1 11264 full
each gpt-oss-20b 1 9216 full --targets attention
each gpt-oss-20b 3 2304 selective
each gpt-oss-20b 2 1664 none --targets attention,experts --rank 64
each gpt-oss-20b 1 4608 none --rank 128
each "$k3" 1 6656 full
each "$k3" 2 2304 selective
each "$k3" 1 4608 none --targets attention --rank 16
each "$k3" 3 1408 full --targets attention,dense,shared --rank 8
each kimi-linear-48b-a3b 1 5632 full --targets attention,experts --rank 24
each kimi-linear-48b-a3b 2 1920 selective --targets attention,shared --rank 48
each qwen3-30b-a3b 2 2816 full --targets attention,experts --rank 48
each qwen3-30b-a3b 3 1152 none --targets attention --rank 4
each gpt-oss-20b 1 5888 selective --targets attention,experts --rank 40
each gpt-oss-20b 2 3840 full
each "$k3" 1 5888 full --targets attention,shared --rank 24
each "$k3" 2 1152 none --targets attention,dense --rank 4
each kimi-linear-48b-a3b 1 4864 full --targets attention,shared --rank 56
each qwen3-30b-a3b 1 6016 full --targets attention,experts --rank 72
each qwen3-30b-a3b 3 2176 selective --targets attention --rank 20
each gpt-oss-20b 1 6272 full
each gpt-oss-20b 2 2944 selective --targets attention,experts --rank 80
each gpt-oss-20b 3 2432 none
each "$k3" 1 4352 full --targets attention,shared --rank 36
each deepseek-v2-lite 2 3200 none
each kimi-linear-48b-a3b 1 6400 full --targets attention,shared --rank 96
each kimi-linear-48b-a3b 2 2688 full --targets attention,dense --rank 28
each qwen3-30b-a3b 1 8704 full --targets attention --rank 104
each qwen3-30b-a3b 3 1984 none
each gpt-oss-20b 1 7424 full
each gpt-oss-20b 2 3456 none --targets attention,experts --rank 96
each gpt-oss-20b 3 1728 selective --targets attention --rank 44
each "$k3" 1 4224 selective --targets attention --rank 112
each "$k3" 2 2688 full
each olmoe-1b-7b 2 3712 full
