"""Group and init() of JACCL's world: what users call. Operations are those of JACCL's protocol."""

from __future__ import annotations

from typing import Any

from standfast import group as groups
from standfast import hooks, joining
from standfast.endpoint import is_loopback, parse_endpoint
from standfast.errors import ConfigError, RendezvousError
from standfast.handles import Handle
from standfast.identity import Identity
from standfast.jaccl import forming, plans
from standfast.jaccl.config import Config, Options, from_env
from standfast.jaccl.topology import RING
from standfast.joining import Seat
from standfast.operations import Plan
from standfast.rendezvous.formation import Formation, PeerInfo, WireEnd
from standfast.settings import JACCL_VARIABLES, Settings


def init(config: Config | None = None, options: Options | None = None) -> Group:
    """Form a group by JACCL's protocol, with stock MLX ranks or our own, and return it.

    Args:
        config: who is in the group; without it what the environment says: see ``from_env``.
        options: the deadline, frames, key and further settings.

    Raises:
        ConfigError: config, environment or device file are wrong, or not those of the other ranks.
        FabricError: an RDMA device is missing or refuses; its fields tell which, why, towards whom.
        PeerDied: another rank ended while the group was being formed. Its output says why: JACCL
            has no words for it.
        RendezvousError: not all ranks came before the deadline, or one does not go on.
    """
    options = Options() if options is None else options
    config = from_env() if config is None else config
    if config is None:
        names = ", ".join(" or ".join(names) for names in JACCL_VARIABLES.values())
        raise ConfigError("nothing says which JACCL group this is", hint=f"set {names}")
    chosen = joining.settings_of(options.overrides())
    if chosen.verify:
        raise ConfigError(
            "verify is on, but JACCL's protocol has no place for digests",
            hint="leave it off here; standfast.init(fabric='verbs') can verify",
        )
    who = Identity(
        rank=config.rank,
        size=config.size,
        coordinator=config.coordinator,
        source=f"JACCL, {config.matrix.source}",
    )
    with joining.reported(who, chosen):
        group = Group(_join(config, who, chosen), config)
    hooks.opened(group)
    return group


def _join(config: Config, who: Identity, chosen: Settings) -> Seat:
    formed = forming.form(config, chosen)
    formation = _formation(config, formed)
    try:
        core = joining.core_of(who, chosen, formation, jaccl=formed.engine, stock=formed.stock)
    except OSError as error:
        raise RendezvousError(
            f"rank {who.rank} met all ranks, but could not start its core: {error}", here=who.rank
        ) from error
    return Seat(core, who, chosen, formation, "", who.rank)


def _formation(config: Config, formed: forming.Formed) -> Formation:
    """Describe the others as far as they are known: stock ranks do not say who they are."""
    hosts = formed.hosts
    peers = tuple(PeerInfo(rank, hosts[rank], 0, False, "") for rank in range(config.size))
    links = [WireEnd(rank, "verbs", -1, -1, False, text) for rank, text in formed.links.items()]
    local = config.coordinator is not None and is_loopback(parse_endpoint(config.coordinator).host)
    return Formation(
        peers=peers,
        control=formed.control,
        wires=links,
        ranks_here=config.size if local else 1,
        beacon_fd=-1,
    )


class Group(groups.Group):
    """The ranks of a JACCL group. Made by ``standfast.jaccl.init()``; a context manager.

    It has the operations of JACCL's protocol: all_sum, all_max, all_min, all_gather, sum_scatter,
    send, recv, barrier, and agree; others are a ValueError. Arrays, ``out``, ``timeout_s`` and
    errors are those of ``standfast.Group``, with these differences:

    * all ranks must issue the same operations, sizes and dtypes in the same order. Ours notice
      where others of ours do not, or a message is lost between them (CollectiveMismatch), as far as
      its frame has room to say so; with a stock rank the result is wrong, unless sizes betray it;
    * a send has no tag, and goes to a neighbour where the group is a ring;
    * rank 0 learns of the death of any rank, and tells those of the others that are ours; where
      rank 0 is a stock rank, they learn of its death alone. Where nobody tells, an operation in
      which nothing moves for ``progress_s`` raises NoProgress;
    * a stock rank that ends looks as if it had died, to those that still need it, and only to them;
    * max and min hand on a NaN or not, by the order of ranks; float16 and bfloat16 are rounded
      after each addition.
    """

    def __init__(self, seat: Seat, config: Config) -> None:
        """Not for users: ``standfast.jaccl.init()`` makes groups."""
        super().__init__(seat)
        self._topology = config.topology

    @property
    def topology(self) -> str:
        """``"mesh"`` or ``"ring"``, as stock chooses."""
        return self._topology

    def agree(self, flag: bool, *, timeout_s: float | None = None) -> bool:
        """Return True on all ranks if all ranks passed True, or else False on all ranks."""
        return bool(self._run(plans.agree(flag, timeout_s)))

    def agree_async(self, flag: bool, *, timeout_s: float | None = None) -> Handle[bool]:
        """Begin ``agree``."""
        return self._submit(plans.agree(flag, timeout_s))

    def split(
        self, color: int | None, key: int = -1, *, timeout_s: float | None = None
    ) -> groups.Group | None:
        """Raise ValueError: JACCL has no groups within a group."""
        raise ValueError(plans.refusal("split"))

    def reform(
        self,
        *,
        min_size: int | None = None,
        max_size: int | None = None,
        wait_s: float = 0.0,
        timeout_s: float | None = None,
        state: bytes = b"",
    ) -> groups.Group:
        """Raise ValueError: stock ranks cannot form again; start all of them anew."""
        raise ValueError(plans.refusal("reform"))

    def _run(self, plan: Plan) -> Any:
        plans.check(plan, self._me, is_ring=self._topology == RING)
        return super()._run(plan)

    def _submit(self, plan: Plan) -> Handle[Any]:
        plans.check(plan, self._me, is_ring=self._topology == RING)
        return super()._submit(plan)

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open" if self.healthy() else "failed"
        return f"<standfast.jaccl.Group: rank {self.rank} of {self.size}, {self.topology}, {state}>"
