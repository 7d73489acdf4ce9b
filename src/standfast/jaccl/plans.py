"""Which plans JACCL's protocol can carry out: checked before any byte is sent. Pure."""

from __future__ import annotations

from standfast import dtypes
from standfast._core import Request
from standfast.arrays import as_wire
from standfast.operations import Member, Plan, seconds

OPERATIONS = (
    *("all_sum", "all_max", "all_min", "all_gather", "sum_scatter", "send", "recv", "barrier"),
    "agree",
)
BETWEEN_TWO = ("send", "recv")


def refusal(name: str) -> str:
    """Say what there is instead."""
    return f"JACCL's protocol has no {name}; it has {', '.join(OPERATIONS)}"


def check(plan: Plan, me: Member, *, is_ring: bool) -> None:
    """Refuse what JACCL has not.

    Raises:
        ValueError: there is no such operation, no such peer, or no tag.
    """
    if plan.name not in OPERATIONS:
        raise ValueError(refusal(plan.name))
    if plan.blob:
        raise ValueError("JACCL's messages do not tell their length: recv needs a shape")
    if plan.name not in BETWEEN_TWO:
        return
    if plan.request.tag != 0:
        raise ValueError(f"JACCL's messages have no tag, and tag is {plan.request.tag}")
    peer = plan.request.peer
    neighbours = {(me.rank - 1) % me.size, (me.rank + 1) % me.size}
    if is_ring and peer not in neighbours:
        raise ValueError(
            f"rank {peer} is no neighbour of rank {me.rank} in this ring of {me.size}: "
            f"{plan.name} reaches {' and '.join(map(str, sorted(neighbours)))} only"
        )


def agree(flag: bool, timeout_s: float | None) -> Plan:
    """Combine a flag of all ranks by `and`, which is the least of them."""
    verdict = bytearray([bool(flag)])
    wire = as_wire(verdict, writable=True)
    request = Request(
        kind="all_reduce",
        src=wire.address,
        dst=wire.address,
        count=1,
        dtype=dtypes.UINT8,
        op="min",
        timeout_s=seconds(timeout_s),
    )
    return Plan("agree", request, lambda blob: verdict[0] != 0, (wire,))
