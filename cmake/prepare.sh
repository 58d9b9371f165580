# shellcheck shell=bash
# Sourced by run.sh and test.sh: installs what is missing (Debian), configures and builds into ./build.

# What the program and its tests need from Debian 12; nothing else is installed.
packages=(g++ cmake ninja-build nlohmann-json3-dev libfmt-dev libboost-dev libcli11-dev libeigen3-dev libtbb-dev libgtest-dev)
# What moeplan-gui needs besides; without them it is skipped by name. `./test.sh` and `./run.sh gui` install them, the planner alone does not.
gui_packages=(qt6-base-dev qt6-svg-dev libqcustomplot-dev libqcustomplot2.1-qt6)

say() { printf '== %s\n' "$*" >&2; }

install_missing() {
  local missing=() package
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    say "not a Debian system: expecting the equivalents of ${packages[*]} to be installed"
    return
  fi
  for package in "${packages[@]}"; do
    if [ "$(dpkg-query -W -f='${db:Status-Abbrev}' "$package" 2>/dev/null | cut -c1-2)" != ii ]; then missing+=("$package"); fi
  done
  if [ "${#missing[@]}" -eq 0 ]; then return; fi
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
      say "missing packages, and neither root nor sudo to install them: ${missing[*]}"
      exit 2
    fi
    as_root=(sudo)
  fi
  say "installing from Debian: ${missing[*]}"
  "${as_root[@]}" apt-get update -q >&2
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${missing[@]}" >&2
}

# Installs the window's packages where that is possible; where it is not, goes on without.
install_gui() {
  command -v dpkg-query >/dev/null && command -v apt-get >/dev/null || return 0
  if dpkg-query -W -f='${db:Status-Abbrev}\n' "${gui_packages[@]}" 2>/dev/null | cut -c1-2 | grep -c '^ii' | grep -qx "${#gui_packages[@]}"; then return 0; fi
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || return 0
    as_root=(sudo -n)
  fi
  say "installing from Debian, for moeplan-gui: ${gui_packages[*]}"
  { "${as_root[@]}" apt-get update -q && "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${gui_packages[@]}"; } >&2 ||
    say "that failed; going on without moeplan-gui"
  # A build folder from before looks again.
  if [ -f build/build.ninja ]; then cmake -S . -B build >/dev/null; fi
}

# build [TARGET]: all cores; ccache is used if it is there. Prints only when there is something to do.
build() {
  if [ ! -f build/build.ninja ]; then
    say "configuring into ./build"
    cmake -S . -B build -G Ninja >&2
  fi
  if ! ninja -C build -n "$@" 2>/dev/null | grep -q 'no work to do'; then
    say "building with $(nproc) cores (the first build takes minutes)"
    cmake --build build --parallel "$(nproc)" ${1:+--target "$1"} >&2
  fi
}
