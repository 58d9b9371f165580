#!/bin/bash
# Megatron-1T on 4,096 A100, batch cap 4,096, float16, without offload: Calculon's search and ours, one after the other, wall and CPU seconds of each.
# bench/anchors/calculon_search.sh CALCULON_CHECKOUT MEGATRON_SEARCH   (github.com/calculon-ai/calculon, caa4b11; its Python needs numpy, pandas and psutil: PYTHON=...)
set -eu
calculon=$1 ours=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" - "$calculon/systems/a100_80g.json" > "$work/system.json" <<'PY'
import json, sys
system = json.load(open(sys.argv[1]))
system['mem2']['GiB'] = 0   # no second memory: no offload
print(json.dumps(system))
PY
TIMEFORMAT='  %R s of wall time, %U s of CPU'
echo "Calculon, $(nproc) cores"
time PYTHONPATH=$calculon "${PYTHON:-python3}" "$calculon/bin/calculon" llm-optimal-execution -c "$(nproc)" "$calculon/models/megatron-1T.json" 4096 4096 float16 "$work/system.json" "$work/best.json"
echo "moeplan, one core"
time "$ours"
