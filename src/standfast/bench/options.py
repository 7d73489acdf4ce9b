"""The options of `standfast bench`: read, brought together, or refused with what to write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import click

from standfast import dtypes
from standfast.bench import plan
from standfast.bench.plan import OPERATIONS, REDOPS, Cell, Sizes

if TYPE_CHECKING:
    ParamType = click.ParamType[Any]
else:  # click before 8.2 has no type arguments
    ParamType = click.ParamType

FABRICS = ("auto", "shm", "tcp", "verbs")
TOPOLOGIES = ("auto", "mesh", "ring")


class Words(ParamType):
    """A list of known words, separated by commas; "all" means every one of them."""

    def __init__(self, what: str, known: Sequence[str], *, all_words: Sequence[str] = ()) -> None:
        self.name: str = what
        self._known = known
        self._all = tuple(all_words or known)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        """Split and check."""
        if isinstance(value, tuple):
            return value
        words = tuple(dict.fromkeys(filter(None, (w.strip() for w in str(value).split(",")))))
        if words == ("all",):
            return self._all
        for word in words:
            if word not in self._known:
                self.fail(f"there is no {self.name} {word!r}; known are {', '.join(self._known)}")
        if not words:
            self.fail(f"no {self.name} is named; known are {', '.join(self._known)}")
        return words


class Bytes(ParamType):
    """A size: bytes, or 32K, 1M, 1G."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read the size."""
        if isinstance(value, int):
            return value
        try:
            return plan.parse_size(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


OPS = Words("operation", tuple(OPERATIONS))
DTYPES = Words("dtype", dtypes.NAMES)
REDUCTIONS = Words("redop", REDOPS)
FABRIC = Words("fabric", FABRICS, all_words=("shm", "tcp"))
TOPOLOGY = Words("topology", TOPOLOGIES, all_words=("mesh", "ring"))


def settle_sizes(options: dict[str, Any]) -> list[int]:
    """Bring -b, -e, -f and -i together."""
    first, last = options.pop("minbytes"), options.pop("maxbytes")
    factor, step = options.pop("stepfactor"), options.pop("stepbytes")
    if step is not None and factor is not None:
        _refuse("-i (steps) and -f (factor): only one of them can be right.")
    if factor is not None and not 1 < factor <= 1e6:
        _refuse(f"-f {factor:g}: a factor of 1 or less does not lead from -b to -e.")
    if step == 0:
        _refuse("-i 0 does not lead from -b to -e.")
    if last < first:
        _refuse(f"-e {last} is less than -b {first}.")
    sizes = list(Sizes(first, last, 0 if step else factor or 2, step or 0))
    if len(sizes) == plan.SIZES_MAX:
        _refuse(f"-b, -e and the step give more than {plan.SIZES_MAX} sizes; take a larger step.")
    return sizes


def settle_cells(options: dict[str, Any], sizes: Sequence[int], ranks: int) -> list[Cell]:
    """Return the cells, or say why there are none."""
    if not 0 <= options["root"] < ranks:
        _refuse(f"-r {options['root']}: there is no such rank among {ranks}.")
    found = plan.cells(
        options["ops"] or ("all_reduce",),
        sizes,
        options["datatype"],
        options["redop"],
        ranks=ranks,
        root=options["root"],
    )
    if not found:
        _refuse(
            f"nothing to measure: {', '.join(options['ops'])} does not exist for"
            f" {', '.join(options['datatype'])}, {', '.join(options['redop'])} and {ranks} ranks."
        )
    return found


def _refuse(message: str) -> NoReturn:
    raise click.UsageError(message)
