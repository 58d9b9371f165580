#!/bin/sh
# Repeats bench/results/kda_h200.md on a Hopper GPU: builds the timing program and the GPU tests, then runs both.
# Needs nvcc 13.0 and GoogleTest. Usage: bench/kda_h200.sh [OUTPUT_FOLDER]
set -e
cd "$(dirname "$0")/.."
out=${1:-build-kda}
mkdir -p "$out"
flags="-std=c++20 -O3 -gencode arch=compute_90a,code=sm_90a -I."
for file in prep scan backward_chunk tables kda; do nvcc $flags -c kernels/kda/$file.cu -o "$out/$file.o"; done
objects="$out/prep.o $out/scan.o $out/backward_chunk.o $out/tables.o $out/kda.o"
nvcc $flags bench/kda.cpp $objects -o "$out/kda_bench"
nvcc $flags tests/kernels/kda/*cuda_test.cpp kernels/kda/reference.cpp kernels/kda/reference_chunked.cpp $objects -lgtest -lgtest_main \
    -o "$out/kda_test"
"$out/kda_test" --gtest_brief=1
"$out/kda_bench" --json "$out/kda.json"
"$out/kda_bench" cuts
