#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Usage: run_model.sh MODEL.pml WORK_DIR
#
# Verifies a Spin model in all the configurations that its head names:
#   VERIFY: -D...   must hold: no assertion fails, and the whole state space was searched
#   MUTANT: -D...   a mistake put in on purpose; must be found, or the model could not fail at all
# A model judges its end states in a process Observer, by assertions behind a `timeout`; so that no
# model passes for never coming to rest, all of Observer must have been reached.
# Exit: 0 all as it should be; 77 no Spin here (a failure when CI=true); 1 otherwise.
set -u

model=$1
work=$2
name=$(basename "$model" .pml)

if ! command -v spin >/dev/null 2>&1; then
  if [ "${CI:-}" = true ]; then
    echo "FAIL: spin is not installed, and in CI it must be"
    exit 1
  fi
  echo "SKIPPED: spin is not installed (Debian: apt install spin)"
  exit 77
fi

# verify DEFINES LOG: leaves pan's output in LOG; fails if it could not be built or run.
verify() {
  dir=$work/$name.run
  rm -rf "$dir" && mkdir -p "$dir" || return 1
  cp "$model" "$dir/model.pml" || return 1
  # No partial-order reduction: the models are small, and so nothing rests on its conditions.
  # shellcheck disable=SC2086
  (cd "$dir" &&
    spin $1 -a model.pml >spin.log 2>&1 &&
    ${CC:-cc} -O2 -w -DSAFETY -DNOREDUCE -DMEMLIM=3000 -o pan pan.c >cc.log 2>&1 &&
    ./pan -E -m200000 -w22 >pan.log 2>&1)
  code=$?
  cat "$dir"/spin.log "$dir"/cc.log "$dir"/pan.log >"$2" 2>/dev/null
  return $code
}

errors_in() { sed -n 's/.*errors: \([0-9][0-9]*\).*/\1/p' "$1" | head -n 1; }

observed() { sed -n '/unreached in proctype Observer/,/states)/p' "$1" | grep -q '(0 of '; }

configurations() { sed -n "s/^ *\\**  *$1: *//p" "$model"; }

# run KIND: 0 if every configuration of the kind ended as it should.
run() {
  list=$(configurations "$1")
  if [ -z "$list" ]; then
    echo "FAIL: $name names no $1 configuration"
    return 1
  fi
  result=0
  while IFS= read -r defines; do
    log=$work/$name.log
    verify "$defines" "$log"
    errors=$(errors_in "$log")
    states=$(sed -n 's/^ *\([0-9.e+]*\) states, stored.*/\1/p' "$log")
    incomplete=$(grep -E 'Search not completed|max search depth|out of memory|memory limit|aborting' "$log")
    verdict=FAIL
    case $1 in
      VERIFY) [ "$errors" = 0 ] && [ -z "$incomplete" ] && observed "$log" && verdict=ok ;;
      MUTANT) [ -n "$errors" ] && [ "$errors" != 0 ] &&
        grep -q 'assertion violated' "$log" && verdict=ok ;;
    esac
    echo "$verdict: $name $1 $defines: errors: ${errors:-none reported}, states: ${states:-?}"
    if [ $verdict = FAIL ]; then
      cat "$log"
      result=1
    fi
  done <<LIST
$list
LIST
  return $result
}

mkdir -p "$work" || exit 1
failed=0
run VERIFY || failed=1
run MUTANT || failed=1
exit $failed
