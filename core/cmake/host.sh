# shellcheck shell=bash
# SPDX-License-Identifier: BSD-3-Clause
# What tests/run, examples/run and .ci/run share: the host's packages, and configuring and building a preset.
# Source it after setting `program` to the name that messages start with.

sluice_source=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
: "${program:?set program before sourcing host.sh}"

say() { echo "$program: $*"; }
die() { echo "$program: $*" >&2; exit 1; }
bad_usage() { echo "$program: $* ($program --help tells more)" >&2; exit 2; }

# packages_of GROUP...: their packages, once each
packages_of() {
  local group
  for group; do
    sed -n "/^\[$group\]\$/,/^\[/{/^[a-z0-9]/p}" "$sluice_source/core/cmake/packages.txt"
  done | sort -u
}

# need_packages GROUP...: installs what is missing of them
need_packages() {
  local package missing=() installed as_root=()
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    say "no apt here; taking it that these are there: $(packages_of "$@" | tr '\n' ' ')"
    return
  fi
  installed=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' | sed -n 's/^installed //p')
  for package in $(packages_of "$@"); do
    grep -qx -- "$package" <<<"$installed" || missing+=("$package")
  done
  ((${#missing[@]} > 0)) || return 0
  if [[ $(id -u) != 0 ]]; then
    command -v sudo >/dev/null || die "these packages are missing, and there is no sudo: ${missing[*]}"
    as_root=(sudo)
  fi
  say "installing with apt: ${missing[*]}"
  local apt=(${as_root[@]+"${as_root[@]}"} env DEBIAN_FRONTEND=noninteractive apt-get -qq
    -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0)
  local log
  log=$(mktemp)
  if ! "${apt[@]}" update >"$log" 2>&1 </dev/null ||
    ! "${apt[@]}" install -y --no-install-recommends "${missing[@]}" >"$log" 2>&1 </dev/null; then
    tail -n 15 "$log" >&2
    rm -f "$log"
    die "apt could not install: ${missing[*]}"
  fi
  rm -f "$log"
}

# presets: the configure presets by name
presets() {
  sed -n '/"configurePresets"/,/^  \]/s/^ *{"name": "\([a-z-]*\)", *"inherits".*/\1/p' "$sluice_source/CMakePresets.json" |
    grep -v -- '-base$'
}

# configure PRESET [CMAKE ARGUMENT...]
configure() {
  local preset=$1 log
  shift
  log=$(mktemp)
  if ! (cd "$sluice_source" && cmake --preset "$preset" "$@") >"$log" 2>&1 </dev/null; then
    cat "$log" >&2
    rm -f "$log"
    die "preset $preset does not configure"
  fi
  grep -A 5 'CMake Warning' "$log" >&2 || true
  rm -f "$log"
}

# build PRESET [TARGET...]: everything, or the targets
build() {
  local preset=$1 targets=()
  shift
  (($# == 0)) || targets=(--target "$@")
  cmake --build "$sluice_source/build/$preset" -j "$(nproc)" ${targets[@]+"${targets[@]}"} </dev/null ||
    die "preset $preset does not build"
}

# count_results FILE WHAT STATUS: from ctest's JUnit file sets passed, failed and not_run; returns ctest's STATUS, or 1
# where no test was run or, with CI=true, some was not.
count_results() {
  local results=$1 what=$2 status=$3 total
  if [[ ! -s $results ]]; then
    say "$what: no test was run"
    exit $((status == 0 ? 1 : status))
  fi
  # The counts are attributes of the suite's first lines; escaped text never looks like a tag.
  attribute() { sed -n "/<testsuite/,/>/s/.*[ \t]$1=\"\([0-9]*\)\".*/\1/p" "$results" | head -n 1; }
  total=$(attribute tests) failed=$(attribute failures)
  not_run=$(($(attribute skipped) + $(attribute disabled)))
  # shellcheck disable=SC2034 # read by the caller
  passed=$((total - failed - not_run))
  if [[ ${CI:-} == true ]] && ((not_run > 0)); then
    echo "Skipped, disabled or not run, which is a failure as CI=true:"
    sed -n 's/.*<testcase name="\([^"]*\)".*status="\(notrun\|disabled\)".*/  \1 (\2)/p' "$results"
    ((status != 0)) || status=1
  fi
  return "$status"
}
