#!/usr/bin/env bash
# Installs what is missing (Debian 12), builds, and runs moeplan.
#   ./run.sh              the main job: Kimi K3 fine-tuned with LoRA on 128 H200
#   ./run.sh ARGUMENTS    moeplan with these arguments, e.g. ./run.sh inspect kimi-k3
set -euo pipefail
start=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")"
# shellcheck source=cmake/prepare.sh
source cmake/prepare.sh

install_missing
build moeplan
program=$PWD/build/moeplan
cd "$start" # file arguments are the caller's

if [ "$#" -gt 0 ]; then exec "$program" "$@"; fi

say "moeplan inspect kimi-k3"
"$program" inspect kimi-k3
say "moeplan plan kimi-k3 --cluster 128xh200"
"$program" plan kimi-k3 --cluster 128xh200
