"""The memory in which the ranks of a host hold their beacons; docs/design/beacon.md.

All of them open it by the same name, before they say that they are ready; when all are, the name
goes. Without it a group works as well: a big rank's death is known later then.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os

from standfast.rendezvous.formation import Segments
from standfast.rendezvous.protocol import Table

log: logging.Logger = logging.getLogger("standfast")

KEY_DIGITS = 12


def name_parts(rank: int, table: Table) -> tuple[int, str]:
    """Return whose pid stands in the name, and its key: both the same for all ranks of a host.

    The token keeps the groups of a host apart. The pid is that of the first rank here; where that
    rank dies before the name goes, the others find it as they find its segments.
    """
    host_id = table.ranks[rank].host_id
    maker = next(entry.pid for entry in table.ranks if entry.host_id == host_id)
    digest = hashlib.sha256(table.token + host_id.encode("utf-8", "surrogateescape"))
    return maker, digest.hexdigest()[:KEY_DIGITS]


class BeaconMemory:
    """This rank's hold on it while the group is being formed."""

    def __init__(self, segments: Segments, *, wanted: bool) -> None:
        self._segments = segments
        self._wanted = wanted
        self._name = ""
        self._fd = -1

    def open(self, rank: int, table: Table) -> None:
        """Open it, or make it if this rank is the first of its host to come here."""
        if not self._wanted:
            return
        maker, key = name_parts(rank, table)
        try:
            self._name, self._fd = self._segments.beacon_open(
                maker=maker, key=key, size=len(table.ranks)
            )
        except (OSError, RuntimeError) as error:
            log.warning(
                "rank %d has no beacon, so that its death may be known late: %s", rank, error
            )

    def unlink(self) -> None:
        """Remove the name: all ranks have opened it, or never will."""
        if not self._name:
            return
        # Another user's, say: its maker removes it.
        with contextlib.suppress(OSError, RuntimeError):
            self._segments.shm_unlink(self._name)
        self._name = ""

    def release(self) -> int:
        """Hand the descriptor over, or -1."""
        self.unlink()
        fd, self._fd = self._fd, -1
        return fd

    def abandon(self) -> None:
        """Let go of everything."""
        fd = self.release()
        if fd >= 0:
            os.close(fd)
