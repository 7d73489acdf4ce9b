"""`python -m standfast` is the `standfast` command."""

from standfast.command import main

main()
