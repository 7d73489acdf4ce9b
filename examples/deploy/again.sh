#!/bin/sh
# Runs a launcher that does not start ranks again by itself, and starts it again where that helps.
#
#     examples/deploy/again.sh 3 mpirun --enable-recovery -n 4 -x MASTER_ADDR=127.0.0.1 \
#         -x STANDFAST_GENERATION python examples/digits.py --checkpoint digits.npz
#
# The first word is how often. Each start is a generation of its own, in STANDFAST_GENERATION: a
# rank of an earlier one cannot join it. Hand that on to ranks of other hosts.

restarts_max=$1
shift
STANDFAST_GENERATION=1
export STANDFAST_GENERATION

until "$@"; do
  status=$?
  # 75 is a survivor's, 128+n that of a rank that was killed; AGAIN_ALSO may name others. MPICH's
  # mpirun ends with the bare number of a signal: AGAIN_ALSO="6 7 9 11 15".
  case " 75 ${AGAIN_ALSO:-} " in
    *" $status "*) ;;
    *) [ "$status" -gt 128 ] || exit "$status" ;;
  esac
  if [ "$STANDFAST_GENERATION" -gt "$restarts_max" ]; then
    echo "started again $restarts_max times already: this was the last time" >&2
    exit "$status"
  fi
  STANDFAST_GENERATION=$((STANDFAST_GENERATION + 1))
  echo "status $status: starting generation $STANDFAST_GENERATION" >&2
done
