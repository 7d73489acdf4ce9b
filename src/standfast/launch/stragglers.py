"""Which ranks need not be waited for, since all others are through with them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable


def hopeless(
    running: Collection[int], ended: Collection[int], named: Iterable[Collection[int]]
) -> bool:
    """Tell whether nobody is left but ranks that those who ended had given up.

    A frozen rank does not end by itself. While others run that may still say so, or end, nothing
    is to be done here.

    Args:
        running: ranks that have not ended.
        ended: ranks that have.
        named: for each error that an ended rank reported, the ranks that it names.
    """
    accused = {rank for ranks in named for rank in ranks}
    return bool(running) and bool(ended) and accused.issuperset(running)
