"""What goes over the side channel: its bytes, exactly as stock's. Pure.

Integers are little-endian; there is no magic, no version, no length and no checksum.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

INT = struct.Struct("<i")
RECORD = struct.Struct("<iIi4s16s")
# By which our ranks know each other. Stock leaves these bytes to chance, and does not read them.
MARK = b"\xb5sf\x01"
# What a barrier of the side channel exchanges.
ZERO = bytes(INT.size)
LIST_MAX = 1024


class Record(NamedTuple):
    """A queue pair, for whoever connects to it.

    gid: 16 bytes in network order. mark: MARK, if it is one of ours.
    """

    lid: int
    queue_pair: int
    psn: int
    gid: bytes
    mark: bytes = MARK


# A mesh's record for the rank itself: nobody reads it.
NOBODY = Record(-1, 0, 0, bytes(16))


def pack_list(records: Sequence[Record], length: int) -> bytes:
    """Return `length` records; those that are missing are zero."""
    packed = b"".join(
        RECORD.pack(each.lid, each.queue_pair, each.psn, each.mark, each.gid) for each in records
    )
    return packed.ljust(RECORD.size * length, b"\0")


def unpack_list(packed: bytes, length: int) -> list[Record]:
    """Return the first `length` records."""
    found = [RECORD.unpack_from(packed, RECORD.size * i) for i in range(length)]
    return [Record(lid, number, psn, gid, mark) for lid, number, psn, mark, gid in found]
