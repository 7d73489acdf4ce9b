#!/bin/sh
# mlx.launch with an exit status: by itself it ends with 0 whatever became of its ranks (MLX 0.32).
#
#     examples/deploy/again.sh 3 examples/deploy/mlx-launch.sh mlx.launch --backend ring -n 4 \
#         -- python examples/digits.py --checkpoint digits.npz
#
# Rank 0's status counts, so rank 0 must run on this host. If it has left none, it was killed: 75.

MLX_LAUNCH_STATUS=$(mktemp)
export MLX_LAUNCH_STATUS
trap 'rm -f "$MLX_LAUNCH_STATUS"' EXIT

# What follows "--" is run by a shell in each rank; that of rank 0 writes down how it ended.
rank=
for word in "$@"; do
  shift
  if [ "$word" = -- ] && [ -z "$rank" ]; then
    # shellcheck disable=SC2016
    rank='"$@"; status=$?; [ "$MLX_RANK" != 0 ] || echo "$status" > "$MLX_LAUNCH_STATUS"; exit "$status"'
    set -- "$@" -- sh -c "$rank" sh
  else
    set -- "$@" "$word"
  fi
done

"$@"
read -r status < "$MLX_LAUNCH_STATUS"
exit "${status:-75}"
