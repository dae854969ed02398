"""Launches that are tried for an access to global memory that could not be proved: if one goes
wrong, the access is a violation and not merely unknown.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from ptxgen.check.prove.contract import MOST_BLOCKS, GlobalArray, GlobalContract
from ptxgen.check.prove.listing.rows import Effort, NotListedError, SpentError, thread_of
from ptxgen.check.prove.listing.search import SPACING, InstrSite, Search
from ptxgen.check.prove.program.domain import Shape
from ptxgen.check.prove.program.global_accesses import GlobalTouch
from ptxgen.check.prove.program.paths import Paths
from ptxgen.check.prove.program.shared_accesses import Home
from ptxgen.check.prove.program.values import Values
from ptxgen.ir import Kernel

Lanes = np.ndarray[Any, np.dtype[Any]]

_SEED: Final = 4
_LAUNCHES: Final = 24  # launches that are tried
_DRAWS: Final = 400  # launches that are drawn; many of them the contract does not allow
_STEPS: Final = 50_000  # of all searches in a kernel: about half a second
_STEPS_OF_TRY: Final = 80  # for a try, in addition to the steps of listing
_VALUES_OF_TRY: Final = 1000  # values that a try may make without spending steps
_FEW: Final = (0, 1, 2, 3, 12, 17, 64, 65, 90, 100, 129)  # sizes to try, if the contract allows them
_HUGE: Final = 1 << 33  # bytes between rows, so that 32 bits do not hold an offset
_APART: Final = 1 << 58  # bytes between arrays
_WORD: Final = 32


class Example(NamedTuple):
    """An access outside an array: the array, the mistake, the thread, the launch's values, and the
    offset of the byte from the array's pointer.
    """

    array: str
    reason: str
    thread: tuple[int, int, int]
    values: tuple[tuple[str, int], ...]
    offset: int


# For each array, its first address, and for each axis the extent and the stride in bytes.
Layout = dict[str, tuple[int, list[tuple[int, int]]]]


class Launch(NamedTuple):
    """The values of a contract's names, the layout of its arrays, and the grid in blocks."""

    names: dict[str, int]
    layout: Layout
    grid: tuple[int, int, int]


class Examples:
    """Searches for a launch of one kernel in which a thread accesses bytes outside of an array."""

    def __init__(
        self,
        kernel: Kernel,
        variables: Mapping[str, Home],
        values: Values,
        shape: Shape,
        contract: GlobalContract,
    ) -> None:
        self._kernel = kernel
        self._values = values
        self._shape = shape
        self._contract = contract
        self._homes = variables
        # Launches with small sizes first, since they need little listing.
        self._launches = dict(enumerate(sorted(self._chosen(), key=self._size)))
        self._effort = Effort(_STEPS)
        self._searches: dict[tuple[int, int], Search] = {}

    def find(self, site: InstrSite, touch: GlobalTouch) -> Example | int | None:
        """A thread of a launch that certainly accesses bytes outside the elements of an array; None
        if there is none in the launches that are tried; or the number of steps after which the
        search gave up.
        """
        allowed = self._effort.share()
        try:
            return self._find(site, touch)
        except SpentError:
            return allowed

    def _find(self, site: InstrSite, touch: GlobalTouch) -> Example | None:
        for number, launch in self._launches.items():
            x, y, z = launch.grid
            for block in sorted({0, x * y * z - 1, x * y * z // 2}):
                self._effort.spend(_STEPS_OF_TRY)
                example = self._tried(number, launch, block, site, touch)
                if example is not None:
                    # A launch in which one access goes wrong is likely to show the next mistake.
                    self._launches = {number: launch} | self._launches
                    return example
        return None

    # ------------------------------------------------------------------------------ launches

    def _chosen(self) -> Iterator[Launch]:
        rng = random.Random(_SEED)
        count = 0
        for n in range(_DRAWS):
            names = {
                name: rng.choice([m for m in _FEW if low <= m <= high] or [low])
                for name, (low, high) in self._contract.bounds.items()
            }
            for name, size in self._contract.equal.items():
                names[name] = self._number(size, names)
            layout = {}
            for number, array in enumerate(self._contract.arrays, 1):
                axes = self._laid_out(array, names, n % 2 == 0, rng)
                layout[array.pointer] = number * _APART, axes
                names[array.pointer] = number * _APART
            x, y, z = (self._number(size, names) for size in self._contract.grid)
            if self._may_be(names, layout, (x, y, z)):
                yield Launch(names, layout, (x, y, z))
                count += 1
            if count == _LAUNCHES:
                return

    def _size(self, launch: Launch) -> int:
        return sum(launch.names[name] for name in self._contract.bounds)

    def _may_be(self, names: dict[str, int], layout: Layout, grid: tuple[int, int, int]) -> bool:
        """Whether the contract allows a launch, and no array reaches into another one."""
        bounds = self._contract.bounds
        spans = (extent * stride for _, axes in layout.values() for extent, stride in axes)
        aligned = (
            stride % array.align == 0
            for array in self._contract.arrays
            for _, stride in layout[array.pointer][1]
        )
        return (
            all(low <= names[name] <= high for name, (low, high) in bounds.items())
            and all(0 < n <= MOST_BLOCKS[a] for a, n in zip("xyz", grid, strict=True))
            and max(spans, default=0) < _APART // 4
            and all(aligned)
        )

    def _laid_out(
        self, array: GlobalArray, names: dict[str, int], huge: bool, rng: random.Random
    ) -> list[tuple[int, int]]:
        """Extent and stride in bytes of each axis, the innermost last. Strides that are parameters
        are chosen so that elements do not overlap.
        """
        dimensions: list[tuple[int, int]] = []
        dense = self._number(array.nbytes, names)
        for axis in reversed(array.axes):
            extent = self._number(axis.extent, names)
            free = [n for n in _named(axis.stride) if n in self._contract.strides]
            for name in free:
                names[name] = 1
                unit = self._number(axis.stride, names)
                gap = rng.randrange(3) * array.align + (_HUGE if huge and not dimensions else 0)
                step = -(-(dense + gap) // max(unit, array.align)) * max(unit, array.align)
                names[name] = step // unit
            stride = self._number(axis.stride, names)
            dimensions.append((extent, stride))
            dense = max(stride * max(extent, 1), dense)
        return dimensions[::-1]

    def _number(self, size: int | str, names: Mapping[str, int]) -> int:
        return int(self._contract.value(size, names, lambda a, b: a // b))

    # ------------------------------------------------------------------------------ one block

    def _tried(
        self, number: int, launch: Launch, block: int, site: InstrSite, touch: GlobalTouch
    ) -> Example | None:
        search = self._search(number, launch, block)
        values = search.values
        known = values.count
        base, offset = values.address(touch.address, site.block, site.position)
        nodes = [base]
        if touch.size is not None and touch.counted is not None:
            nodes.append(values.operand(touch.size, touch.counted, site.block, site.position))
        try:
            bases = dict.fromkeys(self._homes, SPACING)
            lister, table = search.table(nodes, search.condition(site), True, bases)
            addresses = lister.evaluate(table, base).astype(np.int64) + offset
            nbytes = np.full(table.n, touch.nbytes or (1 << 30))
            if len(nodes) > 1:
                nbytes = np.minimum(nbytes, lister.evaluate(table, nodes[1]).astype(np.int64))
        except NotListedError:
            return None
        finally:
            self._effort.spend(4 * max(values.count - known - _VALUES_OF_TRY, 0))
        if not table.n:
            return None
        array = int(np.clip((int(addresses[0]) + _APART // 2) // _APART, 1, len(launch.layout))) - 1
        name = list(launch.layout)[array]
        outside = table.sure & (nbytes > 0) & self._outside(addresses, nbytes, launch, name)
        if not outside.any():
            return None
        row = int(np.argmax(outside))
        thread = thread_of(table, row)
        x, y, _ = self._shape
        shown = {k: v for k, v in launch.names.items() if k not in launch.layout}
        shown["block"] = block
        for leaf in sorted(lister.listed, key=lambda leaf: leaf.id):
            column = table.columns.get(leaf.id)
            if column is not None and leaf.kind in ("header", "join") and leaf.bits == _WORD:
                shown[leaf.data] = int(column[row].astype(np.int32))
        at = int(addresses[row]) - launch.layout[name][0]
        reason = self._reason(at, int(nbytes[row]), launch, name)
        where = (thread % x, thread // x % y, thread // (x * y))
        return Example(name, reason, where, tuple(shown.items()), at)

    def _reason(self, at: int, nbytes: int, launch: Launch, name: str) -> str:
        array = next(a for a in self._contract.arrays if a.pointer == name)
        dense, rest = self._number(array.nbytes, launch.names), at
        for axis, (extent, stride) in zip(array.axes, launch.layout[name][1], strict=True):
            index, rest = divmod(rest, stride)
            if not 0 <= index < extent:
                return (
                    f"byte {at} of {name} has index {index} along the axis of stride "
                    f"{axis.stride}, where {axis.extent} is {extent}"
                )
        if isinstance(array.nbytes, str):
            where = "behind the end" if rest >= 0 else "before the beginning"
            return (
                f"byte {at} of {name} is the first of {nbytes} that reach {where} of a row: they begin at "
                f"its byte {rest}, where {array.nbytes} is {dense}"
            )
        return (
            f"byte {at} of {name} is in no element: bytes {rest} to {rest + nbytes - 1} after the "
            f"beginning of one, which has {dense} bytes"
        )

    def _outside(self, addresses: Lanes, nbytes: Lanes, launch: Launch, name: str) -> Lanes:
        array = next(a for a in self._contract.arrays if a.pointer == name)
        start, axes = launch.layout[name]
        rest = addresses - start
        outside = np.zeros(len(rest), np.bool_)
        for extent, stride in axes:
            index = rest // stride
            outside |= (index < 0) | (index >= extent)
            rest = rest - index * stride
        return outside | (rest + nbytes > self._number(array.nbytes, launch.names))

    def _search(self, number: int, launch: Launch, block: int) -> Search:
        known = self._searches.get((number, block))
        if known is None:
            x, y, _ = launch.grid
            where = {"x": block % x, "y": block // x % y, "z": block // (x * y)}
            specials = {f"%ntid.{a}": n for a, n in zip("xyz", self._shape, strict=True)}
            specials |= {f"%ctaid.{a}": n for a, n in where.items()}
            specials |= {f"%nctaid.{a}": n for a, n in zip("xyz", launch.grid, strict=True)}
            params = frozenset(p.name for p in self._kernel.params)
            arguments = {k: v for k, v in launch.names.items() if k in params}
            values = self._values.in_launch(specials, arguments)
            paths = Paths(values.graph, values)
            search = Search(values, paths, self._shape, {}, self._homes, {}, "", {}, self._effort)
            known = self._searches[number, block] = search
        return known


def _named(size: int | str) -> list[str]:
    return str(size).replace("*", " ").split()
