"""Ranks find each other, prove themselves, compare settings and are wired up, in one deadline.

Sockets and one selector, in the thread that calls `form`. docs/design/rendezvous.md describes it.
"""

from standfast.rendezvous.form import form
from standfast.rendezvous.formation import Formation, PeerInfo, Segments, WireEnd

__all__ = ["Formation", "PeerInfo", "Segments", "WireEnd", "form"]
