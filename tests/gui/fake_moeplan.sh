#!/bin/sh
# Stands in for `moeplan`: prints the lines that `moeplan run --json` prints. The last option says how it ends.
case "$*" in *--crash*) how=crash ;; *--refuse*) how=refuse ;; *--forever*) how=forever ;; *) how=done ;; esac
if [ $how = refuse ]; then echo "moeplan: --steps: 0 is out of range; at least 1" >&2; exit 2; fi
echo "loading weights"
for step in 1 2 3 4 5; do
  echo "{\"step\":$step,\"loss\":$((12 - step)).5,\"grad_norm\":1.25,\"lr\":0.0001,\"tokens\":4096,\"step_s\":0.5,\"tokens_per_second\":8192.0,\"mem_peak_bytes\":120000000,\"imbalance_max\":1.5,\"expert_tokens\":{\"1\":[10,20,30,40],\"2\":[40,30,20,10]}}"
  if [ $how = crash ] && [ $step = 3 ]; then echo "moeplan: about to fall" >&2; kill -SEGV $$; fi
done
if [ $how = forever ]; then trap 'exit 5' INT; while :; do sleep 0.05; done; fi
